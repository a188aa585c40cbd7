#include "accelerate/tracking/operator_times.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <numeric>

#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr int kNone = -1;

struct Node {
  const ProfiledSpan* span = nullptr;
  int parent = kNone;
  std::vector<int> children = {};
  int64_t self_memory_bytes = 0;
  bool merged = false;  // counted as its parent

  int64_t duration_ns() const { return span->end_ns - span->start_ns; }
};

// Spans in the order in which they began, each thread by itself. Of two that began together the longer one is
// the caller.
std::vector<const ProfiledSpan*> in_order(std::span<const ProfiledSpan> spans) {
  std::vector<const ProfiledSpan*> order;
  order.reserve(spans.size());
  for (const ProfiledSpan& span : spans) order.push_back(&span);
  std::stable_sort(order.begin(), order.end(), [](const ProfiledSpan* a, const ProfiledSpan* b) {
    if (a->thread != b->thread) return a->thread < b->thread;
    if (a->start_ns != b->start_ns) return a->start_ns < b->start_ns;
    return a->end_ns > b->end_ns;
  });
  return order;
}

// The calls as trees; memory of no call is added to `homeless_bytes`.
std::vector<Node> build_trees(std::span<const ProfiledSpan> spans, int64_t& homeless_bytes,
                              int64_t& homeless) {
  std::vector<Node> nodes;
  nodes.reserve(spans.size());
  std::vector<int> open;
  const auto at = [&](int index) -> Node& { return nodes[static_cast<size_t>(index)]; };
  for (const ProfiledSpan* span : in_order(spans)) {
    if (!open.empty() && at(open.back()).span->thread != span->thread) open.clear();
    // What only overlaps is no caller.
    while (!open.empty()) {
      const ProfiledSpan& top = *at(open.back()).span;
      if (span->start_ns < top.end_ns && span->end_ns <= top.end_ns) break;
      open.pop_back();
    }
    if (span->is_memory) {
      if (open.empty()) {
        homeless_bytes += span->memory_bytes;
        ++homeless;
      } else {
        at(open.back()).self_memory_bytes += span->memory_bytes;
      }
      continue;
    }
    const int index = static_cast<int>(nodes.size());
    nodes.push_back({.span = span, .parent = open.empty() ? kNone : open.back()});
    if (!open.empty()) at(open.back()).children.push_back(index);
    open.push_back(index);
  }
  return nodes;
}

// An operator whose only callee is another form of itself is one call.
void merge_repeats(std::vector<Node>& nodes) {
  const auto at = [&](int index) -> Node& { return nodes[static_cast<size_t>(index)]; };
  for (bool again = true; again;) {
    again = false;
    for (Node& node : nodes) {
      if (node.merged || node.parent == kNone) continue;
      Node& parent = at(node.parent);
      if (parent.span->name != node.span->name || parent.children.size() != 1) continue;
      for (const int child : node.children) at(child).parent = node.parent;
      parent.children = std::move(node.children);
      parent.self_memory_bytes += node.self_memory_bytes;
      node.merged = true;
      again = true;
    }
  }
}

// "12.345 ms"
std::string format_time(double ns) {
  std::array<char, 32> text{};
  if (ns >= 1e9) {
    std::snprintf(text.data(), text.size(), "%.3f s", ns / 1e9);
  } else if (ns >= 1e6) {
    std::snprintf(text.data(), text.size(), "%.3f ms", ns / 1e6);
  } else {
    std::snprintf(text.data(), text.size(), "%.3f us", ns / 1e3);
  }
  return text.data();
}

std::string format_signed_bytes(int64_t bytes) {
  const auto magnitude = static_cast<uint64_t>(bytes < 0 ? -bytes : bytes);
  return concat(bytes < 0 ? "-" : "", format_bytes(magnitude));
}

std::string format_share(int64_t part, int64_t whole) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.2f%%",
                whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text.data();
}

}  // namespace

std::vector<OperatorTime> add_up_spans(std::span<const ProfiledSpan> spans) {
  int64_t homeless_bytes = 0;
  int64_t homeless = 0;
  std::vector<Node> nodes = build_trees(spans, homeless_bytes, homeless);
  merge_repeats(nodes);
  std::map<std::string, OperatorTime> by_name;
  for (const Node& node : nodes) {
    if (node.merged) continue;
    const bool is_step = node.span->name.starts_with("ProfilerStep#");
    OperatorTime& row = by_name[is_step ? "ProfilerStep*" : node.span->name];
    int64_t self_ns = node.duration_ns();
    for (const int child : node.children) self_ns -= nodes[static_cast<size_t>(child)].duration_ns();
    ++row.count;
    row.self_cpu_time_ns += self_ns;
    row.cpu_time_total_ns += node.duration_ns();
    row.self_cpu_memory_bytes += node.self_memory_bytes;
    row.flops += node.span->flops;
  }
  if (homeless > 0) by_name["[memory]"] = {.count = homeless, .self_cpu_memory_bytes = homeless_bytes};
  std::vector<OperatorTime> rows;
  rows.reserve(by_name.size());
  for (auto& [name, row] : by_name) {
    row.name = name;
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const OperatorTime& a, const OperatorTime& b) {
    return a.self_cpu_time_ns > b.self_cpu_time_ns;
  });
  return rows;
}

std::string format_operator_times(std::span<const OperatorTime> rows, int64_t row_limit) {
  const int64_t whole_ns =
      std::accumulate(rows.begin(), rows.end(), int64_t{0},
                      [](int64_t sum, const OperatorTime& row) { return sum + row.self_cpu_time_ns; });
  const auto any = [&](int64_t OperatorTime::*field) {
    return std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.*field != 0; });
  };
  const bool memory = any(&OperatorTime::self_cpu_memory_bytes);
  const bool flops = any(&OperatorTime::flops);
  std::vector<std::vector<std::string>> cells = {
      {"Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls"}};
  if (memory) cells[0].push_back("Self CPU Mem");
  if (flops) cells[0].push_back("Total FLOPs");
  const size_t count = row_limit < 0 ? rows.size() : std::min(rows.size(), static_cast<size_t>(row_limit));
  for (const OperatorTime& row : rows.first(count)) {
    const auto total_ns = static_cast<double>(row.cpu_time_total_ns);
    cells.push_back({row.name, format_share(row.self_cpu_time_ns, whole_ns),
                     format_time(static_cast<double>(row.self_cpu_time_ns)),
                     format_share(row.cpu_time_total_ns, whole_ns), format_time(total_ns),
                     format_time(total_ns / static_cast<double>(std::max<int64_t>(row.count, 1))),
                     concat(row.count)});
    if (memory) cells.back().push_back(format_signed_bytes(row.self_cpu_memory_bytes));
    if (flops) cells.back().push_back(concat(row.flops));
  }
  std::vector<size_t> widths(cells[0].size(), 0);
  for (const auto& line : cells) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string out;
  for (const auto& line : cells) {
    out += line[0] + std::string(widths[0] - line[0].size(), ' ');
    for (size_t i = 1; i < line.size(); ++i) {
      out += std::string(2 + widths[i] - line[i].size(), ' ') + line[i];
    }
    out += '\n';
  }
  if (count < rows.size()) out += concat("(", rows.size() - count, " more)\n");
  out += concat("Self CPU time total: ", format_time(static_cast<double>(whole_ns)), "\n");
  return out;
}

}  // namespace accelerate
