#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/config/load.h"

namespace accelerate::detail {

/// Collects problems, each with the origin of its key's value.
class Report {
 public:
  Report(const Config& config, std::vector<Problem>& problems) : config_(config), problems_(problems) {}

  void warn(std::string_view key, std::string what, std::string hint) {
    add(Severity::kWarning, ProblemKind::kContent, key, std::move(what), std::move(hint));
  }
  void error(std::string_view key, std::string what, std::string hint) {
    add(Severity::kError, ProblemKind::kContent, key, std::move(what), std::move(hint));
  }
  void unsupported(std::string_view key, std::string what, std::string hint) {
    add(Severity::kError, ProblemKind::kUnsupported, key, std::move(what), std::move(hint));
  }
  /// What does not fit this machine.
  void machine(Severity severity, std::string_view key, std::string what, std::string hint) {
    add(severity, ProblemKind::kMachine, key, std::move(what), std::move(hint));
  }

  /// Problems found elsewhere, with origins of their own.
  void take(const std::vector<Problem>& problems) {
    problems_.insert(problems_.end(), problems.begin(), problems.end());
  }

 private:
  void add(Severity severity, ProblemKind kind, std::string_view key, std::string what, std::string hint);

  const Config& config_;
  std::vector<Problem>& problems_;
};

/// Numbers that have to fit one another: processes, machines, ranks, addresses, device lists.
void check_counts(const Config& config, ValidateFor purpose, Report& report);

/// Numbers that have to fit this machine: cores and devices. Where a file is looked at by itself, it may be
/// meant for another one, and these are warnings.
void check_machine(const Config& config, ValidateFor purpose, Report& report);

}  // namespace accelerate::detail
