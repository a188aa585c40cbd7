#include "accelerate/checkpoint/store/leftovers.h"

#include <array>
#include <random>

#include "accelerate/checkpoint/store/checksum.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr size_t kRandomDigits = 16;
constexpr std::string_view kLockSuffix = ".lock";
constexpr const char* kNumbered = "checkpoint_";

struct Mark {
  LeftoverKind kind;
  std::string_view text;
};
constexpr std::array<Mark, 3> kMarks = {{{LeftoverKind::kDraft, ".draft-"},
                                         {LeftoverKind::kOld, ".old-"},
                                         {LeftoverKind::kRemoving, ".removing-"}}};

}  // namespace

std::optional<Leftover> parse_leftover(std::string_view name) {
  Leftover out{.name = std::string(name), .final_name = {}};
  const bool is_lock = name.ends_with(kLockSuffix);
  if (is_lock) name.remove_suffix(kLockSuffix.size());
  if (name.size() < kRandomDigits || !parse_checksum(name.substr(name.size() - kRandomDigits))) return {};
  name.remove_suffix(kRandomDigits);
  for (const Mark& mark : kMarks) {
    if (name.size() <= mark.text.size() || !name.ends_with(mark.text)) continue;
    if (is_lock && mark.kind != LeftoverKind::kDraft) return {};
    out.final_name = name.substr(0, name.size() - mark.text.size());
    out.kind = is_lock ? LeftoverKind::kLock : mark.kind;
    return out;
  }
  return {};
}

std::string leftover_name(const std::string& final_name, LeftoverKind kind) {
  std::random_device random;
  const uint64_t value = static_cast<uint64_t>(random()) << 32 | random();
  for (const Mark& mark : kMarks) {
    if (mark.kind == kind) return concat(final_name, mark.text, checksum_text(value));
  }
  throw CheckpointError({.what = "locks are named after their draft"});
}

std::string lock_name(const std::string& draft) {
  return concat(draft, kLockSuffix);
}

std::string checkpoint_name(int64_t number) {
  return concat(kNumbered, number);
}

std::optional<int64_t> checkpoint_number(std::string_view name) {
  if (!name.starts_with(kNumbered)) return std::nullopt;
  const auto number = parse_int(name.substr(std::string_view(kNumbered).size()));
  if (!number || *number < 0 || checkpoint_name(*number) != name) return std::nullopt;
  return number;
}

std::string file_name(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::string checkpoint_path(const std::string& path) {
  std::string out = path;
  while (out.ends_with('/')) out.pop_back();
  const std::string name = file_name(out);
  if (name.empty() || name == "." || name == "..") {
    throw CheckpointError({.what = "saving a checkpoint",
                           .expected = "the path of a folder with a name of its own",
                           .got = concat("'", path, "'"),
                           .hint = "Give for instance out/checkpoint_0."});
  }
  return out;
}

}  // namespace accelerate
