#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accelerate {

/// What all calls of one operator (or range) took together.
struct OperatorTime {
  std::string name = {};
  int64_t count = 0;
  /// Time within it, without that of the operators and ranges it called.
  int64_t self_cpu_time_ns = 0;
  int64_t cpu_time_total_ns = 0;
  /// Memory of the CPU taken minus given back within it, its callees left out; 0 without profile_memory.
  int64_t self_cpu_memory_bytes = 0;
  /// By torch's formulas for matrix products and convolutions; 0 without with_flops.
  int64_t flops = 0;
};

/// One range of time on one thread, or (end_ns == start_ns) memory that was taken or given back then.
struct ProfiledSpan {
  std::string name = {};
  uint64_t thread = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t memory_bytes = 0;
  int64_t flops = 0;
  bool is_memory = false;
};

/// Adds up spans by name, the largest self time first. Which span called which follows from their times, and
/// an operator that does nothing but call itself once counts once, both as in Python's key_averages()
/// (torch/autograd/profiler_util.py), whose numbers these are. "ProfilerStep#7" counts as "ProfilerStep*".
/// Memory of no span goes to "[memory]".
std::vector<OperatorTime> add_up_spans(std::span<const ProfiledSpan> spans);

/// A table for people of the first `row_limit` rows (-1: all), with the sum of all self times below it.
std::string format_operator_times(std::span<const OperatorTime> rows, int64_t row_limit = 100);

}  // namespace accelerate
