// Values as text: the one place that knows how a slot's type is read and written.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "accelerate/config/excerpt.h"
#include "accelerate/config/schema.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

std::string number_text(double value) {
  std::array<char, 64> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : "0";
}

std::string enum_text(std::string_view key, size_t index) {
  const auto words = words_of(find_row(key)->allowed);
  return index < words.size() ? words[index] : "?";
}

// One overload a type of value; the text reads back to the same value.
std::string to_text(bool value) {
  return value ? "true" : "false";
}
std::string to_text(int64_t value) {
  return std::to_string(value);
}
std::string to_text(double value) {
  return number_text(value);
}
std::string to_text(const std::string& value) {
  return value;
}
std::string to_text(const std::vector<std::string>& value) {
  return join(value, ",");
}
std::string to_text(DistributedType value) {
  return enum_text("distributed_type", static_cast<size_t>(value));
}
std::string to_text(MixedPrecision value) {
  return enum_text("mixed_precision", static_cast<size_t>(value));
}
template <class T>
std::string to_text(const OrAuto<T>& value) {
  return value.is_auto() ? "auto" : to_text(*value.value);
}

template <class T>
std::optional<std::string> slot_text(const T& value) {
  return to_text(value);
}
template <class T>
std::optional<std::string> slot_text(const std::optional<T>& value) {
  if (!value) return std::nullopt;
  return to_text(*value);
}

// Conversion of a text that the row's checks have passed and brought into its canonical form.
void from_text(const std::string& text, bool& out) {
  out = parse_bool(text).value_or(false);
}
void from_text(const std::string& text, int64_t& out) {
  out = parse_int(text).value_or(0);
}
void from_text(const std::string& text, double& out) {
  out = parse_double(text).value_or(0);
}
void from_text(const std::string& text, std::string& out) {
  out = text;
}
void from_text(const std::string& text, std::vector<std::string>& out) {
  out = split(text, ',');
}
template <class Enum>
void enum_from_text(std::string_view key, const std::string& text, Enum& out) {
  const auto words = words_of(find_row(key)->allowed);
  out = static_cast<Enum>(std::find(words.begin(), words.end(), text) - words.begin());
}
void from_text(const std::string& text, DistributedType& out) {
  enum_from_text("distributed_type", text, out);
}
void from_text(const std::string& text, MixedPrecision& out) {
  enum_from_text("mixed_precision", text, out);
}
template <class T>
void from_text(const std::string& text, OrAuto<T>& out) {
  out = {};
  if (text == "auto") return;
  out.value.emplace();
  from_text(text, *out.value);
}
template <class T>
void from_text(const std::string& text, std::optional<T>& out) {
  T value{};
  from_text(text, value);
  out = std::move(value);
}

// A text in its canonical form, or what is wrong with it.
struct Canonical {
  std::string text;
  std::string error;
  std::string warning;
};

// How a text is to be read.
struct Rule {
  const KeyRow& row;
  bool or_auto;
};

std::string wrong(const Rule& rule, std::string_view text) {
  return concat("expected ", expected_text(rule.row, rule.or_auto), ", got '", detail::excerpt(text), "'");
}

// Outside "low..high", of which either may be missing.
template <class T>
bool is_outside(std::string_view range, T value) {
  const size_t dots = range.find("..");
  if (dots == std::string_view::npos) return false;
  const auto low = parse_int(range.substr(0, dots));
  const auto high = parse_int(range.substr(dots + 2));
  return (low && value < static_cast<T>(*low)) || (high && value > static_cast<T>(*high));
}

Canonical canonical_int(const Rule& rule, const std::string& text) {
  std::optional<int64_t> value = parse_int(text);
  if (!value) {
    // YAML 1.1 reads 1e8 as a text, JSON gives 2e8 for sizes: integral all the same.
    const auto number = parse_double(text);
    if (number && std::floor(*number) == *number && std::abs(*number) < 9e15) {
      value = static_cast<int64_t>(*number);
    }
  }
  if (!value) return {.text = {}, .error = wrong(rule, text), .warning = {}};
  if (is_outside(rule.row.allowed, *value)) return {{}, wrong(rule, text), {}};
  return {std::to_string(*value), {}, {}};
}

Canonical canonical_word(const Rule& rule, const std::string& text) {
  const auto words = words_of(rule.row.allowed);
  for (const std::string& word : words) {
    if (to_lower(word) == to_lower(text)) return {word, {}, {}};
  }
  for (const std::string& pair : words_of(rule.row.old_values)) {
    const size_t equals = pair.find('=');
    if (to_lower(pair.substr(0, equals)) != to_lower(text)) continue;
    const std::string now = pair.substr(equals + 1);
    return {now, {}, concat("'", text, "' is not among today's values; read as ", now)};
  }
  // Unquoted `no` is a boolean to YAML 1.1, and files that such a reader has passed on say `false`.
  const auto truth = parse_bool(text);
  for (const std::string& word : words) {
    const std::string lower = to_lower(word);
    if (truth && !*truth && (lower == "no" || lower == "false")) return {word, {}, {}};
    if (truth && *truth && lower == "true") return {word, {}, {}};
  }
  std::string error = wrong(rule, text);
  if (auto near = nearest_name(text, words)) error += concat(". Did you mean ", *near, "?");
  return {{}, error, {}};
}

bool is_gpu_name(const std::string& id) {
  if (parse_int(id)) return *parse_int(id) >= 0;
  return id.starts_with("GPU-") || id.starts_with("MIG-");
}

Canonical canonical_gpu_ids(const Rule& rule, const std::string& text) {
  if (text.empty() || to_lower(text) == "all") return {};
  std::vector<std::string> ids;
  bool empty_part = false;
  for (const std::string& part : split(text, ',')) {
    std::string id = trim(part);
    if (id.empty()) {
      empty_part = true;
      continue;
    }
    if (!is_gpu_name(id)) return {{}, wrong(rule, text), {}};
    if (const auto number = parse_int(id)) id = std::to_string(*number);
    if (std::find(ids.begin(), ids.end(), id) != ids.end()) {
      return {{}, concat("device ", id, " is named twice in '", detail::excerpt(text), "'"), {}};
    }
    ids.push_back(std::move(id));
  }
  if (ids.empty()) return {{}, wrong(rule, text), {}};
  Canonical out{join(ids, ","), {}, {}};
  if (empty_part)
    out.warning = concat("'", detail::excerpt(text), "' has a comma too many; read as ", out.text);
  return out;
}

// "(a, b)", "[a, b]" and "a, b" alike.
std::string canonical_list(std::string text) {
  if (text.size() >= 2 && (text.front() == '[' || text.front() == '('))
    text = text.substr(1, text.size() - 2);
  std::vector<std::string> parts = split(text, ',');
  for (std::string& part : parts) part = trim(part);
  return join(parts, ",");
}

Canonical canonical(const Rule& rule, const std::string& text) {
  if (rule.or_auto && to_lower(text) == "auto") return {"auto", {}, {}};
  switch (rule.row.type) {
    case ValueType::kBool: {
      const auto value = parse_bool(text);
      if (!value) return {{}, wrong(rule, text), {}};
      return {to_text(*value), {}, {}};
    }
    case ValueType::kInt:
      return canonical_int(rule, text);
    case ValueType::kNumber: {
      const auto value = parse_double(text);
      if (!value || is_outside(rule.row.allowed, *value)) return {{}, wrong(rule, text), {}};
      return {number_text(*value), {}, {}};
    }
    case ValueType::kWord:
      return canonical_word(rule, text);
    case ValueType::kGpuIds:
      return canonical_gpu_ids(rule, text);
    case ValueType::kList:
      return {canonical_list(text), {}, {}};
    case ValueType::kText:
    case ValueType::kBlock:
      break;
  }
  return {text, {}, {}};
}

template <class T>
constexpr bool is_or_auto(const std::optional<OrAuto<T>>*) {
  return true;
}
constexpr bool is_or_auto(const void*) {
  return false;
}

}  // namespace

std::string_view to_string(DistributedType type) {
  static const std::vector<std::string> kWords = words_of(find_row("distributed_type")->allowed);
  return kWords.at(static_cast<size_t>(type));
}

std::string_view to_string(MixedPrecision precision) {
  static const std::vector<std::string> kWords = words_of(find_row("mixed_precision")->allowed);
  return kWords.at(static_cast<size_t>(precision));
}

std::optional<std::string> value_text(const Config& config, const KeyRow& row) {
  if (row.slot == nullptr) return std::nullopt;
  // Slots point into a Config that may be changed; here it is only read.
  const Slot slot = row.slot(const_cast<Config&>(config));
  if (row.type == ValueType::kGpuIds && !config.gpu_ids) return "all";
  return std::visit([](const auto* value) { return slot_text(*value); }, slot);
}

SetResult set_value(Config& config, const KeyRow& row, std::string_view text) {
  if (row.slot == nullptr) return {concat("'", row.name, "' takes no value here"), {}};
  return set_slot(row.slot(config), row, text);
}

bool takes_auto(const Slot& slot) {
  return std::visit([](auto* value) { return is_or_auto(value); }, slot);
}

SetResult set_slot(const Slot& slot, const KeyRow& row, std::string_view text) {
  const Canonical value = canonical({row, takes_auto(slot)}, trim(text));
  if (!value.error.empty()) return {value.error, {}};
  if (row.type == ValueType::kGpuIds && value.text.empty()) {
    std::get<std::optional<std::vector<std::string>>*>(slot)->reset();  // "all"
  } else {
    std::visit([&](auto* out) { from_text(value.text, *out); }, slot);
  }
  return {{}, value.warning};
}

void reset_value(Config& config, const KeyRow& row) {
  if (row.slot == nullptr) return;
  Config fresh;
  const Slot from = row.slot(fresh);
  std::visit([&](auto* out) { *out = *std::get<decltype(out)>(from); }, row.slot(config));
}

std::vector<std::string> differing_keys(const Config& a, const Config& b) {
  std::vector<std::string> out;
  for (const KeyRow& row : schema()) {
    if (value_text(a, row) != value_text(b, row)) out.emplace_back(row.name);
  }
  return out;
}

}  // namespace accelerate
