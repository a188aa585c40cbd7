#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate {

/// What stands beside a checkpoint NAME while one is written, replaced or removed, as NAME.<kind>-<16 hex>.
enum class LeftoverKind {
  kDraft,     ///< being written; or, after an exchange, the checkpoint that it replaced
  kLock,      ///< NAME.draft-<16 hex>.lock: whoever writes the draft of that name holds a lock on it
  kOld,       ///< a checkpoint set aside for the one that replaces it, where names can't be exchanged
  kRemoving,  ///< a checkpoint on its way out
};

struct Leftover {
  std::string name;        ///< as found
  std::string final_name;  ///< NAME
  LeftoverKind kind = LeftoverKind::kDraft;
};

/// Takes such a name apart; nothing for any other name.
std::optional<Leftover> parse_leftover(std::string_view name);

/// A new name (or path, if `final_name` is one) with a random part of its own.
std::string leftover_name(const std::string& final_name, LeftoverKind kind);

/// The lock that belongs to a draft's name or path.
std::string lock_name(const std::string& draft);

/// What checkpoints of a run are called: "checkpoint_<number>".
std::string checkpoint_name(int64_t number);

/// The number in such a name, written without leading zeros; nothing for any other name.
std::optional<int64_t> checkpoint_number(std::string_view name);

/// `path` without slashes at its end.
/// @throws CheckpointError where that leaves no name for a checkpoint ("", "/", "..").
std::string checkpoint_path(const std::string& path);

/// The last part of a path.
std::string file_name(const std::string& path);

}  // namespace accelerate
