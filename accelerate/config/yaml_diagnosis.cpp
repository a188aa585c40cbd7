#include "accelerate/config/yaml_diagnosis.h"

#include <algorithm>

#include "accelerate/config/excerpt.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

bool holds_text(const std::string& line) {
  const std::string text = trim(line);
  return !text.empty() && text.front() != '#';
}

size_t indentation(const std::string& line) {
  const size_t first = line.find_first_not_of(' ');
  return first == std::string::npos ? 0 : first;
}

// The text of a line counted from 1, empty where there is none.
std::string line_at(const std::vector<std::string>& lines, int line) {
  return line >= 1 && line <= static_cast<int>(lines.size()) ? lines[static_cast<size_t>(line) - 1]
                                                             : std::string();
}

// The last line with text before `line`; 0 if there is none.
int line_above(const std::vector<std::string>& lines, int line) {
  for (int i = std::min(line - 1, static_cast<int>(lines.size())); i >= 1; --i) {
    if (holds_text(line_at(lines, i))) return i;
  }
  return 0;
}

// The first line up to `last` that is none of what a configuration has; 0 if there is none.
int first_odd_line(const std::vector<std::string>& lines, int last) {
  for (int i = 1; i <= std::min(last, static_cast<int>(lines.size())); ++i) {
    const std::string line = trim(line_at(lines, i));
    if (!holds_text(line) || line.front() == '-' || line.front() == '%') continue;
    if (line.find(':') == std::string::npos && line.find_first_of("[]{},") == std::string::npos) return i;
  }
  return 0;
}

bool has_value(const std::string& line) {
  const size_t colon = line.find(": ");
  return colon != std::string::npos && holds_text(line.substr(colon + 2));
}

}  // namespace

bool lacks_blank_after_colon(const std::string& line) {
  const std::string text = trim(line);
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) return false;
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(colon), plain) &&
         text[colon + 1] != ' ';
}

YamlDiagnosis diagnose_yaml(const std::vector<std::string>& lines, int line, const std::string& message) {
  const std::string text = line_at(lines, line);
  if (text.find("{%") != std::string::npos || text.find("{{") != std::string::npos) {
    return {line, concat("'", excerpt(text), "' is a template's placeholder"),
            "Fill in the value: templates are not expanded in configuration files."};
  }
  if (const int odd = first_odd_line(lines, line); odd > 0) {
    return {odd, concat("not YAML: '", excerpt(line_at(lines, odd)), "' is not 'key: value'"),
            "Remove the line, or write it as key: value."};
  }
  const int above = line_above(lines, line);
  const std::string before = line_at(lines, above);
  for (const int suspect : {above, line}) {
    if (!lacks_blank_after_colon(line_at(lines, suspect))) continue;
    return {suspect, concat("not YAML: no blank after the colon in '", excerpt(line_at(lines, suspect)), "'"),
            "Write 'key: value' with an ordinary blank."};
  }
  if (above > 0 && indentation(text) > indentation(before) && has_value(before)) {
    return {line,
            concat("not YAML: '", excerpt(text), "' is indented deeper than line ", above, " ('",
                   excerpt(before), "'), which has a value already"),
            "Indent both alike."};
  }
  if (message == "bad file") return {line, "nested too deeply for a configuration file", {}};
  const std::string near = holds_text(text) ? concat(" at '", excerpt(text), "'") : std::string();
  return {line, concat("not YAML: ", message, near), "Compare with a file that 'accel config' writes."};
}

YamlDiagnosis diagnose_second_document(const std::vector<std::string>& lines, int line) {
  const std::string text = line_at(lines, line);
  if (text.starts_with("---")) {
    return {line, "a second document begins here ('---'), which would be ignored",
            "Keep one configuration a file."};
  }
  return {line, concat("not YAML: '", excerpt(text), "' does not belong to the lines above it"),
          "Indent the keys alike, one 'key: value' a line."};
}

}  // namespace accelerate::detail
