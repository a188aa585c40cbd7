#include "launcher/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "accelerate/core/strings.h"
#include "launcher/html.h"

namespace accelerate::cli {
namespace {

constexpr double kWidth = 480;
constexpr double kHeight = 270;
constexpr double kLeft = 74;
constexpr double kRight = 14;
constexpr double kTop = 12;
constexpr double kBottom = 46;
constexpr size_t kMostPoints = 1000;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  // A line that is flat, or a single point, stands in the middle.
  void widen() {
    if (empty()) low = 0, high = 1;
    if (high > low) return;
    const double by = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= by;
    high += by;
  }
};

std::string coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string plain_number(double value) {
  char text[40];
  const double size = std::abs(value);
  if (value == std::floor(value) && size < 1e6) {
    std::snprintf(text, sizeof text, "%.0f", value);
  } else if (size >= 1e6 || size < 1e-3) {
    std::snprintf(text, sizeof text, "%.3g", value);
  } else {
    std::snprintf(text, sizeof text, "%.4g", value);
  }
  return text;
}

std::string bytes_text(double value) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t name = 0;
  double number = value;
  while (std::abs(number) >= 1024 && name + 1 < std::size(kNames)) {
    number /= 1024;
    ++name;
  }
  return concat(plain_number(std::round(number * 100) / 100), " ", kNames[name]);
}

std::string seconds_text(double value) {
  const double size = std::abs(value);
  if (size == 0 || size >= 1) return plain_number(value) + " s";
  if (size >= 1e-3) return plain_number(value * 1e3) + " ms";
  return plain_number(value * 1e6) + " us";
}

struct Scale {
  Range range;
  double from = 0;
  double to = 1;
  double at(double value) const {
    return from + (value - range.low) / (range.high - range.low) * (to - from);
  }
};

struct Point {
  double x;
  double y;
};

bool drawable(double x, double y) {
  return std::isfinite(x) && std::isfinite(y);
}

// Pieces without a gap, thinned so that spikes stay.
std::vector<std::vector<Point>> pieces_of(const ChartLine& line) {
  std::vector<std::vector<Point>> out;
  const size_t count = std::min(line.x.size(), line.y.size());
  const size_t step = count > kMostPoints ? (count + kMostPoints / 2 - 1) / (kMostPoints / 2) : 1;
  bool open = false;
  for (size_t begin = 0; begin < count; begin += step) {
    size_t least = count;
    size_t most = count;
    bool gap = false;
    for (size_t i = begin; i < std::min(begin + step, count); ++i) {
      if (!drawable(line.x[i], line.y[i])) {
        gap = true;
        continue;
      }
      if (least == count || line.y[i] < line.y[least]) least = i;
      if (most == count || line.y[i] > line.y[most]) most = i;
    }
    if (least != count) {
      if (!open) out.emplace_back();
      open = true;
      out.back().push_back({line.x[std::min(least, most)], line.y[std::min(least, most)]});
      if (least != most) out.back().push_back({line.x[std::max(least, most)], line.y[std::max(least, most)]});
    }
    if (gap) open = false;
  }
  return out;
}

std::string draw_line(const ChartLine& line, const Scale& x, const Scale& y) {
  std::string out =
      concat("<g class=\"l", line.colour % kChartColours, line.colour >= kChartColours ? " dash" : "",
             "\"><title>", html_text(line.name), "</title>");
  for (const auto& piece : pieces_of(line)) {
    if (piece.size() == 1) {
      out += concat("<circle cx=\"", coordinate(x.at(piece[0].x)), "\" cy=\"", coordinate(y.at(piece[0].y)),
                    "\" r=\"2.5\"/>");
      continue;
    }
    out += "<polyline points=\"";
    for (const Point& point : piece)
      out += concat(coordinate(x.at(point.x)), ",", coordinate(y.at(point.y)), " ");
    out.back() = '"';
    out += "/>";
  }
  return out + "</g>\n";
}

std::string draw_axes(const Chart& chart, const Scale& x, const Scale& y) {
  std::string out = "<g class=\"axis\">";
  for (const double tick : chart_ticks(y.range.low, y.range.high, 5, chart.unit)) {
    const std::string at = coordinate(y.at(tick));
    out += concat("<line x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", at, "\" y2=\"", at,
                  "\"/><text x=\"", kLeft - 6, "\" y=\"", at, "\" dy=\"0.35em\" text-anchor=\"end\">",
                  html_text(chart_number(tick, chart.unit)), "</text>");
  }
  for (const double tick : chart_ticks(x.range.low, x.range.high, 6, ChartUnit::kPlain)) {
    const std::string at = coordinate(x.at(tick));
    out += concat("<line x1=\"", at, "\" x2=\"", at, "\" y1=\"", kHeight - kBottom, "\" y2=\"",
                  kHeight - kBottom + 4, "\"/><text x=\"", at, "\" y=\"", kHeight - kBottom + 17,
                  "\" text-anchor=\"middle\">", plain_number(tick), "</text>");
  }
  out += concat("<text class=\"label\" x=\"", (kLeft + kWidth - kRight) / 2, "\" y=\"", kHeight - 8,
                "\" text-anchor=\"middle\">", html_text(chart.x_label), "</text>");
  out += concat("<text class=\"label\" transform=\"translate(13 ", (kTop + kHeight - kBottom) / 2,
                ") rotate(-90)\" text-anchor=\"middle\">", html_text(chart.y_label), "</text></g>\n");
  return out;
}

// "run a: from 2.3 to 0.31 over 100 values; ..."
std::string description(const Chart& chart) {
  std::vector<std::string> parts;
  for (const ChartLine& line : chart.lines) {
    if (line.y.empty()) continue;
    parts.push_back(concat(line.name, ": from ", chart_number(line.y.front(), chart.unit), " to ",
                           chart_number(line.y.back(), chart.unit), " over ", line.y.size(),
                           line.y.size() == 1 ? " value" : " values"));
  }
  return concat("Lines of ", chart.y_label.empty() ? chart.title : chart.y_label, " by ", chart.x_label, ". ",
                join(parts, "; "), ".");
}

}  // namespace

std::string chart_number(double value, ChartUnit unit) {
  if (!std::isfinite(value)) return "not finite";
  switch (unit) {
    case ChartUnit::kBytes:
      return bytes_text(value);
    case ChartUnit::kSeconds:
      return seconds_text(value);
    case ChartUnit::kPercent:
      return plain_number(value) + " %";
    default:
      return plain_number(value);
  }
}

std::vector<double> chart_ticks(double low, double high, int count, ChartUnit unit) {
  if (!(high > low) || !std::isfinite(high - low)) return {low};
  const double wanted = (high - low) / count;
  double step = 0;
  if (unit == ChartUnit::kBytes) {
    step = std::exp2(std::ceil(std::log2(wanted)));
  } else {
    const double power = std::pow(10, std::floor(std::log10(wanted)));
    const double part = wanted / power;
    step = power * (part <= 1 ? 1 : part <= 2 ? 2 : part <= 5 ? 5 : 10);
  }
  std::vector<double> out;
  for (double number = std::ceil(low / step - 1e-9); number * step <= high + step * 1e-9; ++number) {
    out.push_back(number == 0 ? 0 : number * step);
  }
  return out;
}

std::string chart_svg(const Chart& chart) {
  Scale x{.range = {}, .from = kLeft, .to = kWidth - kRight};
  Scale y{.range = {}, .from = kHeight - kBottom, .to = kTop};
  for (const ChartLine& line : chart.lines) {
    for (size_t i = 0; i < std::min(line.x.size(), line.y.size()); ++i) {
      if (!drawable(line.x[i], line.y[i])) continue;
      x.range.add(line.x[i]);
      y.range.add(line.y[i]);
    }
  }
  x.range.widen();
  y.range.widen();
  std::string out = concat("<svg viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\" aria-labelledby=\"",
                           html_text(chart.id), "-t ", html_text(chart.id), "-d\">\n<title id=\"",
                           html_text(chart.id), "-t\">", html_text(chart.title), "</title><desc id=\"",
                           html_text(chart.id), "-d\">", html_text(description(chart)), "</desc>\n");
  out += draw_axes(chart, x, y);
  for (const ChartLine& line : chart.lines) out += draw_line(line, x, y);
  return out + "</svg>\n";
}

}  // namespace accelerate::cli
