#include "launcher/memory_estimate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "accelerate/config/schema.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

constexpr double kMostParameters = 1e15;

struct Strategy {
  const char* name;
  bool shards_weights;
  bool shards_gradients;
  bool shards_optimizer;
};
constexpr Strategy kStrategies[] = {{"ddp", false, false, false},
                                    {"zero1", false, false, true},
                                    {"zero2", false, true, true},
                                    {"zero3", true, true, true}};

struct Precision {
  const char* name;
  uint64_t weights;  // bytes a parameter, as are the other two
  uint64_t gradients;
  uint64_t master_weights;
};
constexpr Precision kPrecisions[] = {{"fp32", 4, 4, 0}, {"bf16/fp16", 2, 2, 4}};

uint64_t state_bytes_per_parameter(std::string_view optimizer) {
  if (optimizer == "adamw") return 8;
  if (optimizer == "sgd-momentum") return 4;
  if (optimizer == "sgd") return 0;
  throw ConfigError(
      {.what = "--optimizer", .expected = "adamw, sgd or sgd-momentum", .got = std::string(optimizer)});
}

bool zero_is_supported() {
  const auto works = words_of(find_row("distributed_type")->works);
  return std::find(works.begin(), works.end(), "DEEPSPEED") != works.end();
}

}  // namespace

std::vector<MemoryEstimate> estimate_memory(const ModelSize& model, std::string_view optimizer,
                                            int num_processes) {
  const uint64_t state = state_bytes_per_parameter(optimizer);
  const auto ranks = static_cast<uint64_t>(std::max(num_processes, 1));
  const uint64_t whole = model.parameters;
  const uint64_t shard = whole / ranks + (whole % ranks != 0 ? 1 : 0);
  const bool zero_supported = zero_is_supported();
  std::vector<MemoryEstimate> out;
  for (const Strategy& strategy : kStrategies) {
    for (const Precision& precision : kPrecisions) {
      out.push_back({.strategy = strategy.name,
                     .precision = precision.name,
                     .supported = zero_supported || !strategy.shards_optimizer,
                     .weights_bytes =
                         (strategy.shards_weights ? shard : whole) * precision.weights + model.buffer_bytes,
                     .gradients_bytes = (strategy.shards_gradients ? shard : whole) * precision.gradients,
                     .optimizer_bytes =
                         (strategy.shards_optimizer ? shard : whole) * (state + precision.master_weights)});
    }
  }
  return out;
}

uint64_t parse_parameter_count(const std::string& text) {
  std::string number = trim(text);
  double factor = 1;
  if (!number.empty()) {
    const std::string suffixes = "kmbt";
    const size_t at = suffixes.find(to_lower(number).back());
    if (at != std::string::npos) {
      factor = std::pow(1000.0, static_cast<double>(at + 1));
      number.pop_back();
    }
  }
  const auto value = parse_double(number);
  const double count = value ? std::round(*value * factor) : 0;
  if (!value || count < 1 || count > kMostParameters) {
    throw ConfigError({.what = "--parameters",
                       .expected = "a number of parameters from 1 to 1e15, such as 7B, 350M or 124000",
                       .got = concat("'", text, "'")});
  }
  return static_cast<uint64_t>(count);
}

std::string memory_text(uint64_t num_bytes) {
  if (num_bytes < 1024) return concat(num_bytes, " bytes");
  auto value = static_cast<double>(num_bytes);
  const char* unit = "";
  for (const char* next : {"KB", "MB", "GB", "TB", "PB"}) {
    if (value < 1024) break;
    value /= 1024;
    unit = next;
  }
  char text[48];
  std::snprintf(text, sizeof text, "%.2f %s", value, unit);
  return text;
}

std::string box_table(const std::vector<std::vector<std::string>>& rows, bool utf8) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const std::string side = utf8 ? "│" : "|";
  const auto line = [&](const char* left, const char* middle, const char* right) {
    std::string out = utf8 ? left : "+";
    for (size_t i = 0; i < widths.size(); ++i) {
      for (size_t count = 0; count < widths[i] + 2; ++count) out += utf8 ? "─" : "-";
      out += !utf8 ? "+" : i + 1 < widths.size() ? middle : right;
    }
    return out + "\n";
  };
  std::string out = line("┌", "┬", "┐");
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string cell = i < rows[r].size() ? rows[r][i] : "";
      const std::string blanks(widths[i] - cell.size(), ' ');
      out += side + " " + (i == 0 ? cell + blanks : blanks + cell) + " ";
    }
    out += side + "\n";
    if (r == 0) out += line("├", "┼", "┤");
  }
  return out + line("└", "┴", "┘");
}

}  // namespace accelerate::cli
