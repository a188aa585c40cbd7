#include "launcher/run_report.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <map>
#include <set>

#include "accelerate/core/strings.h"
#include "accelerate/core/version.h"
#include "launcher/chart.h"
#include "launcher/html.h"

namespace accelerate::cli {
namespace {

// Colours: eight that stay apart for most forms of colour blindness (Okabe and Ito 2008), darker or lighter
// where the background asks for it. Beyond eight runs lines are dashed.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#57606a;--line:#d8dee4;--card:#f6f8fa;--mark:#fff3c4;
--c0:#0061a8;--c1:#c04a00;--c2:#00775a;--c3:#a8437f;--c4:#8a6a00;--c5:#2f7fb5;--c6:#5b4b8a;--c7:#444}
@media (prefers-color-scheme:dark){:root{--back:#0d1117;--text:#e6edf3;--soft:#9aa5b1;--line:#30363d;--card:#161b22;
--mark:#4a3b00;--c0:#58a6ff;--c1:#ff9d5c;--c2:#3ddc97;--c3:#f08cc8;--c4:#f0e442;--c5:#8fd3ff;--c6:#b8a6ff;--c7:#c9d1d9}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1500px;padding:1rem;background:var(--back);color:var(--text);
font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.15rem;margin:1.6em 0 .5em}h3{font-size:1rem;margin:0 0 .3em;
overflow-wrap:anywhere}
p{margin:.3em 0}.soft{color:var(--soft)}
.charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr))}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.8rem;min-width:0}
svg{display:block;width:100%;height:auto}
.axis line{stroke:var(--line)}.axis text{fill:var(--soft);font-size:12px}.axis .label{fill:var(--text)}
polyline{fill:none;stroke:currentColor;stroke-width:1.6;stroke-linejoin:round;stroke-opacity:.85}circle{fill:currentColor}
.dash polyline{stroke-dasharray:6 3}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}
th,td{padding:.25rem .7rem .25rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
td{overflow-wrap:break-word;min-width:4.5rem;max-width:34rem;font-variant-numeric:tabular-nums}th{white-space:nowrap}
tr.differs td{background:var(--mark)}
.key{display:inline-block;width:1.1em;height:.35em;margin-right:.4em;vertical-align:middle;background:currentColor;
border-radius:2px}
details{margin-top:.5rem}summary{cursor:pointer;color:var(--soft)}
)css";

std::string line_styles() {
  std::string out;
  for (size_t i = 0; i < kChartColours; ++i) out += concat(".l", i, "{color:var(--c", i, ")}");
  return out;
}

std::string key(size_t run) {
  return concat("<span class=\"key l", run % kChartColours, "\"></span>");
}

std::string row(const std::vector<std::string>& cells, const char* attributes = "") {
  std::string out = concat("<tr", attributes, ">");
  for (size_t i = 0; i < cells.size(); ++i) {
    out += i == 0 ? concat("<th scope=\"row\">", cells[i], "</th>") : concat("<td>", cells[i], "</td>");
  }
  return out + "</tr>\n";
}

std::string header(const std::vector<std::string>& cells) {
  std::string out = "<thead><tr>";
  for (const std::string& cell : cells) out += concat("<th scope=\"col\">", cell, "</th>");
  return out + "</tr></thead>\n";
}

std::string time_text(double seconds) {
  if (!(seconds > 0) || seconds > 4e9) return "";
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char text[40];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 4e9) return "";
  const auto whole = static_cast<int64_t>(seconds);
  if (whole < 60) return concat(std::round(seconds * 10) / 10, " s");
  if (whole < 3600) return concat(whole / 60, " min ", whole % 60, " s");
  return concat(whole / 3600, " h ", whole / 60 % 60, " min");
}

bool holds(const std::string& text, const std::vector<std::string>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return text.find(part) != std::string::npos; });
}

// "loss" first, then the learning rate, speed, memory, and all others.
int place_of(const std::string& metric) {
  const std::string name = to_lower(metric);
  if (holds(name, {"loss"})) return 0;
  if (name == "lr" || name.ends_with("/lr") || name.ends_with("_lr") || name.starts_with("lr_") ||
      holds(name, {"learning_rate", "learning rate"})) {
    return 1;
  }
  if (holds(name, {"per_second", "throughput", "/s", "_per_sec", "speed", "samples_s", "tokens_s"})) return 2;
  if (holds(name, {"memory", "bytes", "_mib", "_gib", "rss"})) return 3;
  return 4;
}

struct Unit {
  ChartUnit unit = ChartUnit::kPlain;
  double factor = 1;  // to the unit
  std::string label = {};
};

// What a metric's name says of its unit.
Unit unit_of(const std::string& metric) {
  const std::string name = to_lower(metric);
  const auto ends = [&](const std::vector<std::string>& endings) {
    return std::any_of(endings.begin(), endings.end(),
                       [&](const std::string& end) { return name.ends_with(end); });
  };
  if (holds(name, {"per_second", "per_sec"}) || ends({"/s"})) return {ChartUnit::kPerSecond, 1, "1/s"};
  if (ends({"bytes"})) return {ChartUnit::kBytes, 1, "bytes"};
  if (ends({"_kib"})) return {ChartUnit::kBytes, 1024, "bytes"};
  if (ends({"_mib"})) return {ChartUnit::kBytes, 1024.0 * 1024, "bytes"};
  if (ends({"_gib"})) return {ChartUnit::kBytes, 1024.0 * 1024 * 1024, "bytes"};
  if (ends({"_ms"})) return {ChartUnit::kSeconds, 1e-3, "time"};
  if (ends({"_us"})) return {ChartUnit::kSeconds, 1e-6, "time"};
  if (ends({"_seconds", "_secs", "_s"})) return {ChartUnit::kSeconds, 1, "time"};
  if (ends({"percent", "_pct"})) return {ChartUnit::kPercent, 1, "percent"};
  return {};
}

double last_step(const TrackedRun& run) {
  double out = -1;
  for (const Metric& metric : run.metrics) {
    for (const MetricPoint& point : metric.points) out = std::max(out, point.step);
  }
  return out;
}

std::string overview(const std::vector<TrackedRun>& runs) {
  std::string out =
      "<div class=\"wide\"><table>" +
      header({"Run", "Status", "Started", "Duration", "Ranks", "Last step", "Machine", "Source"}) +
      "<tbody>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    const TrackedRun& run = runs[i];
    const double steps = last_step(run);
    std::string notes;
    for (const std::string& problem : run.problems) notes += concat("<br>", html_text(problem));
    out += row({key(i) + html_text(run.name), run.status.empty() ? "not recorded" : html_text(run.status),
                time_text(run.started), duration_text(run.ended - run.started),
                run.world_size > 0 ? std::to_string(run.world_size) : "",
                steps >= 0 ? chart_number(steps, ChartUnit::kPlain) : "no values", html_text(run.host),
                html_text(run.source) + notes});
  }
  return out + "</tbody></table></div>\n";
}

std::string values_table(const std::vector<TrackedRun>& runs, const std::string& metric, const Unit& unit) {
  std::string out = "<details><summary>Values</summary><div class=\"wide\"><table>" +
                    header({"Run", "First", "Least", "Greatest", "Last", "Values", "Not finite"}) +
                    "<tbody>\n";
  for (size_t i = 0; i < runs.size(); ++i) {
    const Metric* found = runs[i].find(metric);
    if (found == nullptr) continue;
    double least = INFINITY;
    double greatest = -INFINITY;
    int64_t bad = 0;
    for (const MetricPoint& point : found->points) {
      if (std::isfinite(point.value)) {
        least = std::min(least, point.value);
        greatest = std::max(greatest, point.value);
      } else {
        ++bad;
      }
    }
    const auto text = [&](double value) { return chart_number(value * unit.factor, unit.unit); };
    out +=
        row({key(i) + html_text(runs[i].name), text(found->points.front().value), text(least), text(greatest),
             text(found->points.back().value), std::to_string(found->points.size()), std::to_string(bad)});
  }
  return out + "</tbody></table></div></details>\n";
}

std::string chart_card(const std::vector<TrackedRun>& runs, const std::string& metric, size_t number) {
  const Unit unit = unit_of(metric);
  Chart chart{.id = concat("chart", number), .title = metric, .unit = unit.unit};
  chart.y_label = unit.label.empty() ? metric : concat(metric, " (", unit.label, ")");
  if (chart.y_label.size() > 40) chart.y_label = unit.label.empty() ? "value" : unit.label;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Metric* found = runs[i].find(metric);
    if (found == nullptr) continue;
    ChartLine line{.name = runs[i].name, .colour = i};
    for (const MetricPoint& point : found->points) {
      line.x.push_back(point.step);
      line.y.push_back(point.value * unit.factor);
    }
    chart.lines.push_back(std::move(line));
  }
  return concat("<section class=\"card\"><h3>", html_text(metric), "</h3>\n", chart_svg(chart),
                values_table(runs, metric, unit), "</section>\n");
}

std::string charts(const std::vector<TrackedRun>& runs) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const TrackedRun& run : runs) {
    for (const Metric& metric : run.metrics) {
      if (seen.insert(metric.name).second) names.push_back(metric.name);
    }
  }
  if (names.empty()) return "<p>No numbers have been logged.</p>\n";
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return place_of(a) < place_of(b); });
  std::string out = "<div class=\"charts\">\n";
  for (size_t i = 0; i < names.size(); ++i) out += chart_card(runs, names[i], i);
  return out + "</div>\n";
}

// Names down, runs across; rows in which runs differ are marked. `rows` gives a run's names and cells.
using NamedCells = std::vector<std::pair<std::string, std::string>>;
std::string comparison(const std::vector<TrackedRun>& runs,
                       const std::function<NamedCells(const TrackedRun&)>& rows) {
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> cells(runs.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    for (auto& [name, cell] : rows(runs[i])) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      cells[i][name] = std::move(cell);
    }
  }
  if (names.empty()) return "<p>Not recorded.</p>\n";
  std::vector<std::string> head = {"Name"};
  for (size_t i = 0; i < runs.size(); ++i) head.push_back(key(i) + html_text(runs[i].name));
  std::string out = "<div class=\"wide\"><table>" + header(head) + "<tbody>\n";
  for (const std::string& name : names) {
    std::vector<std::string> line = {html_text(name)};
    bool differs = false;
    for (const auto& of_run : cells) {
      const auto found = of_run.find(name);
      line.push_back(found == of_run.end() ? "" : found->second);
      differs |= line.back() != line[1];
    }
    out += row(line, differs ? " class=\"differs\"" : "");
  }
  return out + "</tbody></table></div>\n";
}

NamedCells configuration_cells(const TrackedRun& run) {
  NamedCells out;
  for (const auto& [name, value] : run.configuration) out.emplace_back(name, html_text(value));
  return out;
}

NamedCells setting_cells(const TrackedRun& run) {
  NamedCells out;
  for (const ExplainedValue& setting : run.settings) {
    out.emplace_back(setting.name, concat(html_text(setting.value), " <span class=\"soft\">",
                                          html_text(setting.origin), "</span>"));
  }
  return out;
}

}  // namespace

std::string run_report(const std::string& title, const std::vector<TrackedRun>& runs) {
  const std::string heading = html_text(title);
  const std::string count = concat(runs.size(), runs.size() == 1 ? " run" : " runs");
  std::string out = concat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<meta name=\"color-scheme\" "
      "content=\"light "
      "dark\">\n<title>",
      heading, "</title>\n<style>", kStyle, line_styles(), "</style>\n</head>\n<body>\n<header><h1>", heading,
      "</h1><p class=\"soft\">", count, ", written by accel ", kVersion, "</p></header>\n<main>\n");
  out += overview(runs);
  out += "<h2>Metrics</h2>\n" + charts(runs);
  out += "<h2>Configuration of the program</h2>\n" + comparison(runs, configuration_cells);
  out += "<h2>Settings of the launch, and where each comes from</h2>\n" + comparison(runs, setting_cells);
  return out + "</main>\n</body>\n</html>\n";
}

}  // namespace accelerate::cli
