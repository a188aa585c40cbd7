// A configuration as text: YAML for files, and the list of values with their origins.
#include <algorithm>
#include <map>

#include "accelerate/config/load.h"
#include "accelerate/config/schema.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

// True where a YAML reader, of whichever version, takes the bare text for this text and nothing else.
bool is_plain_text(const std::string& text) {
  static constexpr std::string_view kReserved[] = {"y",   "n",    "yes",   "no",  "on",
                                                   "off", "true", "false", "null"};
  if (text.empty()) return false;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (!letter(text[0]) && text[0] != '/' && text[0] != '_') return false;
  for (char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!letter(c) && !digit && c != '_' && c != '-' && c != '.' && c != '/') return false;
  }
  const std::string lower = to_lower(text);
  return std::find(std::begin(kReserved), std::end(kReserved), lower) == std::end(kReserved);
}

std::string quoted(const std::string& text) {
  if (is_plain_text(text)) return text;
  const bool control = std::any_of(text.begin(), text.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  std::string out;
  if (!control) {
    for (char c : text) {
      out += c;
      if (c == '\'') out += c;
    }
    return concat("'", out, "'");
  }
  static constexpr char kHex[] = "0123456789abcdef";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += concat("\\x", kHex[byte >> 4], kHex[byte & 15]);
    } else {
      out += c;
    }
  }
  return concat("\"", out, "\"");
}

// A number as every YAML reader takes it for one: PyYAML wants a dot in front of an exponent.
std::string yaml_number(const std::string& text) {
  const size_t exponent = text.find('e');
  const bool integral = text.find('.') == std::string::npos;
  if (exponent != std::string::npos && integral)
    return text.substr(0, exponent) + ".0" + text.substr(exponent);
  return integral && text != "auto" ? text + ".0" : text;
}

std::string yaml_value(const Config& config, const KeyRow& row, const std::string& text) {
  switch (row.type) {
    case ValueType::kBool:
      return text;  // "auto" included
    case ValueType::kInt:
      return text;
    case ValueType::kNumber:
      return yaml_number(text);
    case ValueType::kWord:
      // Where both are allowed, true and false mean themselves and not a text.
      return text == "true" || text == "false" ? text : quoted(text);
    default:
      return quoted(text);
  }
}

std::string yaml_list(const std::vector<std::string>& items, const std::string& indent) {
  if (items.empty()) return " []\n";
  std::string out = "\n";
  for (const std::string& item : items) out += concat(indent, "- ", quoted(item), "\n");
  return out;
}

bool is_written(const Config& config, const KeyRow& row) {
  if (row.slot == nullptr) return false;
  if (row.written == Written::kAlways) return true;
  return config.given(row.name);
}

// One key with its value, with the line end; empty for one that has no value.
std::string yaml_line(const Config& config, const KeyRow& row, const std::string& indent) {
  const auto text = value_text(config, row);
  if (!text) return {};
  if (row.type == ValueType::kList) {
    // The slot is only read.
    const Slot slot = row.slot(const_cast<Config&>(config));
    const auto& items = *std::get<std::optional<std::vector<std::string>>*>(slot);
    return items ? concat(indent, row.leaf(), ":", yaml_list(*items, indent)) : std::string();
  }
  return concat(indent, row.leaf(), ": ", yaml_value(config, row, *text), "\n");
}

}  // namespace

std::string write_yaml(const Config& config) {
  std::map<std::string, std::string> top;
  std::map<std::string, std::map<std::string, std::string>> blocks;
  for (const KeyRow& row : schema()) {
    if (!is_written(config, row)) continue;
    const std::string line = yaml_line(config, row, row.block().empty() ? "" : "  ");
    if (line.empty()) continue;
    if (row.block().empty()) {
      top[std::string(row.leaf())] = line;
    } else {
      blocks[std::string(row.block())][std::string(row.leaf())] = line;
    }
  }
  for (const auto& [name, lines] : blocks) {
    std::string text = name + ":\n";
    for (const auto& [key, line] : lines) text += line;
    top[name] = text;
  }
  std::string out;
  for (const auto& [key, text] : top) out += text;
  return out;
}

std::string explain(const Config& config) {
  std::vector<std::pair<std::string, std::string>> lines;
  size_t width = 0;
  for (const KeyRow& row : schema()) {
    if (row.slot == nullptr) continue;
    if (!row.block().empty() && !config.given(row.name)) continue;
    const auto text = value_text(config, row);
    // Keys of other machines would drown the rest where nobody gave them.
    if (!config.given(row.name) && row.support == Support::kNoEffect) continue;
    const std::string shown = concat(row.name, ": ", text ? yaml_value(config, row, *text) : "(not given)");
    width = std::max(width, shown.size());
    lines.emplace_back(shown, describe(config.origin_of(row.name)));
  }
  width = std::min<size_t>(width, 60);
  std::string out;
  for (const auto& [shown, origin] : lines) {
    out += shown + std::string(shown.size() < width ? width - shown.size() : 0, ' ') + "  # " + origin + "\n";
  }
  return out;
}

}  // namespace accelerate
