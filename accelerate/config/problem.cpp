#include "accelerate/config/problem.h"

#include <algorithm>

#include "accelerate/core/strings.h"

namespace accelerate {

std::string describe(const ValueOrigin& origin) {
  switch (origin.origin) {
    case Origin::kDefault:
      return "default";
    case Origin::kDetected:
      return concat("detected: ", origin.detail);
    case Origin::kFile:
      return origin.line > 0 ? concat("file ", origin.detail, ":", origin.line)
                             : concat("file ", origin.detail);
    case Origin::kEnvironment:
      return concat("environment ", origin.detail);
    case Origin::kCommandLine:
      return concat("command line ", origin.detail);
    case Origin::kCode:
      return concat("code ", origin.detail);
  }
  return "default";
}

std::string describe(const Problem& problem) {
  std::string out;
  switch (problem.where.origin) {
    case Origin::kFile:
      out = problem.where.detail;
      if (problem.where.line > 0) out += concat(":", problem.where.line);
      out += ": ";
      break;
    case Origin::kEnvironment:
    case Origin::kCommandLine:
    case Origin::kCode:
      out = describe(problem.where) + ": ";
      break;
    case Origin::kDefault:
    case Origin::kDetected:
      break;
  }
  if (!problem.key.empty()) out += concat(problem.key, ": ");
  out += problem.what;
  if (!problem.hint.empty()) {
    if (out.back() != '.' && out.back() != '?') out += '.';
    out += concat(" ", problem.hint);
  }
  return out;
}

bool has_errors(std::span<const Problem> problems) {
  return std::any_of(problems.begin(), problems.end(),
                     [](const Problem& problem) { return problem.severity == Severity::kError; });
}

}  // namespace accelerate
