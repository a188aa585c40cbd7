#include "accelerate/launch/tagged_output.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr std::array<std::string_view, 3> kEnds = {"]<stdout>:", "]<stderr>:", "]<stddiag>:"};

struct Tag {
  enum class Kind { kNone, kCutOff, kWhole } kind = Kind::kNone;
  int rank = 0;
  size_t bytes = 0;
};

size_t digits_at(std::string_view text, size_t at) {
  size_t count = 0;
  while (at + count < text.size() && std::isdigit(static_cast<unsigned char>(text[at + count])) != 0) ++count;
  return count;
}

// What `text`, which begins with '[', is the beginning of.
Tag read_tag(std::string_view text) {
  constexpr size_t kMostDigits = 9;
  const size_t job = digits_at(text, 1);
  if (job > kMostDigits) return {};
  if (1 + job == text.size()) return {Tag::Kind::kCutOff};
  if (job == 0 || text[1 + job] != ',') return {};
  const size_t start = job + 2;
  const size_t rank = digits_at(text, start);
  if (rank > kMostDigits) return {};
  const std::string_view rest = text.substr(start + rank);
  if (rest.empty()) return {Tag::Kind::kCutOff};
  if (rank == 0) return {};
  for (const std::string_view end : kEnds) {
    if (rest.starts_with(end)) {
      const auto number = parse_int(text.substr(start, rank)).value_or(0);
      return {Tag::Kind::kWhole, static_cast<int>(number), start + rank + end.size()};
    }
    if (end.starts_with(rest)) return {Tag::Kind::kCutOff};
  }
  return {};
}

}  // namespace

void TaggedOutput::feed(std::string_view bytes) {
  const std::string joined = held_.append(bytes);
  held_.clear();
  std::string_view left = joined;
  size_t plain = 0;  // bytes at the front that are no tag
  while (plain < left.size()) {
    if (left[plain] == '\n') {
      pass(left.substr(0, plain + 1));
      left.remove_prefix(plain + 1);
      plain = 0;
      rank_.reset();
      continue;
    }
    const Tag tag = left[plain] == '[' ? read_tag(left.substr(plain)) : Tag();
    if (tag.kind == Tag::Kind::kNone) {
      ++plain;
      continue;
    }
    pass(left.substr(0, plain));
    left.remove_prefix(plain);
    plain = 0;
    if (tag.kind == Tag::Kind::kCutOff) {
      held_ = left;
      return;
    }
    rank_ = tag.rank;
    left.remove_prefix(tag.bytes);
  }
  pass(left);
}

void TaggedOutput::finish() {
  pass(held_);
  held_.clear();
  rank_.reset();
}

std::optional<int> rank_named_by_mpirun(std::string_view text) {
  const auto number_after = [&](std::string_view start, std::string_view skipped_to) -> std::optional<int> {
    const size_t at = text.find(start);
    if (at == std::string_view::npos) return std::nullopt;
    size_t from = at + start.size();
    if (!skipped_to.empty()) from = text.find(skipped_to, from);
    if (from == std::string_view::npos) return std::nullopt;
    from += skipped_to.size();
    const auto number = parse_int(text.substr(from, digits_at(text, from)));
    return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
  };
  if (const auto rank = number_after("Process name: [[", "],")) return rank;
  return number_after("process rank ", "");
}

void TaggedOutput::pass(std::string_view text) {
  if (!text.empty()) sink_(rank_, text);
}

}  // namespace accelerate::detail
