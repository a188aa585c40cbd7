#pragma once

#include <string>
#include <vector>

namespace accelerate::cli {

/// Colours that a page gives the classes "l0" to "l7"; further lines take them again and are dashed (class
/// "dash").
inline constexpr size_t kChartColours = 8;

/// One line of a chart. Where `y` is not finite, the line is broken.
struct ChartLine {
  std::string name;
  size_t colour = 0;
  std::vector<double> x = {};
  std::vector<double> y = {};
};

/// What a number means, and so how it is written.
enum class ChartUnit { kPlain, kBytes, kSeconds, kPercent, kPerSecond };

struct Chart {
  std::string id;  ///< unique in its document
  std::string title;
  std::string x_label = "step";
  std::string y_label = {};
  ChartUnit unit = ChartUnit::kPlain;
  std::vector<ChartLine> lines = {};
};

/// "1.5 GiB", "12 ms", "3.2e-05", "45 %". "not finite" for what is not.
std::string chart_number(double value, ChartUnit unit);

/// Round values that span [low, high], about `count` of them; steps are 1, 2 or 5 times a power of ten, or of
/// two for bytes.
std::vector<double> chart_ticks(double low, double high, int count, ChartUnit unit);

/// The chart as an SVG element with a title and a description in words, for readers of screens. Lines of more
/// than 1000 points are drawn by the least and greatest value of each of 500 pieces.
std::string chart_svg(const Chart& chart);

}  // namespace accelerate::cli
