#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

/// What a file holds, before any key is known: texts as they stand there, with their lines. Types are decided
/// by the schema and not by a format's rules, since `no`, `1e8` and `0,1` mean different things to different
/// readers.
struct RawNode {
  enum class Kind { kNull, kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  int line = 0;
  bool quoted = false;         ///< kScalar
  std::string text;            ///< kScalar
  std::vector<RawNode> items;  ///< kList
  std::vector<Entry> entries;  ///< kMap, in the file's order, duplicates included
};

struct RawNode::Entry {
  std::string key;
  int line = 0;
  RawNode value;
};

/// Nodes of one file at most: a file of a few lines can otherwise stand for billions through aliases of
/// aliases.
inline constexpr int kMaxNodes = 20'000;

}  // namespace accelerate::detail
