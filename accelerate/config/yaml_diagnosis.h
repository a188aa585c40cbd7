#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

/// Why a text is no YAML, in words for people.
struct YamlDiagnosis {
  int line = 0;  ///< from 1
  std::string what;
  std::string hint;
};

/// A YAML parser notices many slips lines later and calls them "illegal map value". Looks for the slip at and
/// above the line where it gave up.
/// @param line where the parser gave up, from 1
/// @param message what the parser said
YamlDiagnosis diagnose_yaml(const std::vector<std::string>& lines, int line, const std::string& message);

/// "num_processes:2", also with one of the blanks that are no blank.
bool lacks_blank_after_colon(const std::string& line);

/// The same for a line at which a second document begins.
YamlDiagnosis diagnose_second_document(const std::vector<std::string>& lines, int line);

}  // namespace accelerate::detail
