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

std::string yaml_value(const KeyRow& row, const std::string& text) {
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
    case ValueType::kList:
      return concat("[", text, "]");  // in explain() only; a file has one item a line
    default:
      return quoted(text);
  }
}

// The items of a list, which may hold commas and so do not survive as one text; null for other types.
const std::vector<std::string>* list_of(const Config& config, const KeyRow& row) {
  if (row.type != ValueType::kList) return nullptr;
  // Slots point into a Config that may be changed; here it is only read.
  const Slot slot = row.slot(const_cast<Config&>(config));
  const auto& items = *std::get<std::optional<std::vector<std::string>>*>(slot);
  return items ? &*items : nullptr;
}

std::string yaml_line(const Config& config, const KeyRow& row, const std::string& indent) {
  const std::string start = concat(indent, row.leaf(), ":");
  if (const auto* items = list_of(config, row)) {
    if (items->empty()) return start + " []\n";
    std::string out = start + "\n";
    for (const std::string& item : *items) out += concat(indent, "- ", quoted(item), "\n");
    return out;
  }
  return concat(start, " ", yaml_value(row, value_text(config, row).value_or("")), "\n");
}

std::string json_text(const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += concat("\\", c);
    } else if (byte < 0x20) {
      out += concat("\\u00", kHex[byte >> 4], kHex[byte & 15]);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string json_value(const Config& config, const KeyRow& row) {
  if (const auto* items = list_of(config, row)) {
    std::vector<std::string> parts;
    for (const std::string& item : *items) parts.push_back(json_text(item));
    return concat("[", join(parts, ", "), "]");
  }
  const std::string text = value_text(config, row).value_or("");
  const bool number = row.type == ValueType::kInt || row.type == ValueType::kNumber;
  const bool literal = number || row.type == ValueType::kBool || text == "true" || text == "false";
  return literal && text != "auto" ? text : json_text(text);
}

// What is written, sorted: a block's keys are below its name, a top-level key is below its own.
using SortedRows = std::map<std::string, std::map<std::string, const KeyRow*>>;

SortedRows rows_to_write(const Config& config) {
  SortedRows out;
  for (const KeyRow& row : schema()) {
    if (row.slot == nullptr || !value_text(config, row)) continue;
    if (row.written == Written::kWhenGiven && !config.given(row.name)) continue;
    out[std::string(row.block().empty() ? row.leaf() : row.block())][std::string(row.leaf())] = &row;
  }
  return out;
}

}  // namespace

std::string write_yaml(const Config& config) {
  std::string out;
  for (const auto& [top, rows] : rows_to_write(config)) {
    const bool block = !rows.begin()->second->block().empty();
    if (block) out += top + ":\n";
    for (const auto& [key, row] : rows) out += yaml_line(config, *row, block ? "  " : "");
  }
  return out;
}

std::string write_json(const Config& config) {
  std::vector<std::string> lines;
  for (const auto& [top, rows] : rows_to_write(config)) {
    const bool block = !rows.begin()->second->block().empty();
    std::vector<std::string> members;
    for (const auto& [key, row] : rows) {
      members.push_back(concat(block ? "    \"" : "  \"", key, "\": ", json_value(config, *row)));
    }
    const std::string text = join(members, ",\n");
    lines.push_back(block ? concat("  \"", top, "\": {\n", text, "\n  }") : text);
  }
  return concat("{\n", join(lines, ",\n"), "\n}\n");
}

std::vector<ExplainedValue> explained_values(const Config& config) {
  std::vector<ExplainedValue> out;
  for (const KeyRow& row : schema()) {
    if (row.slot == nullptr) continue;
    const bool given = config.given(row.name);
    // Keys of other machines and of blocks would drown the rest where nobody gave them.
    if (!given && (!row.block().empty() || row.support == Support::kNoEffect)) continue;
    const auto text = value_text(config, row);
    out.push_back({.name = std::string(row.name),
                   .value = text ? yaml_value(row, *text) : "(not given)",
                   .origin = describe(config.origin_of(row.name))});
  }
  return out;
}

std::string explain(const Config& config) {
  const std::vector<ExplainedValue> values = explained_values(config);
  const auto shown = [](const ExplainedValue& value) { return concat(value.name, ": ", value.value); };
  size_t width = 0;
  for (const ExplainedValue& value : values) width = std::max(width, shown(value).size());
  width = std::min<size_t>(width, 60);
  std::string out;
  for (const ExplainedValue& value : values) {
    std::string line = shown(value);
    line.resize(std::max(line.size(), width), ' ');
    out += line + "  # " + value.origin + "\n";
  }
  return out;
}

}  // namespace accelerate
