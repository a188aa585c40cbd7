#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/core/file_system.h"

namespace accelerate {

/// One file of a checkpoint.
struct CheckpointFile {
  std::string path;  ///< below the checkpoint's folder, parts separated by '/'
  uint64_t size_bytes = 0;
  uint64_t xxh3_64 = 0;  ///< XXH3-64, seed 0, of its content

  bool operator==(const CheckpointFile&) const = default;
};

/// What a checkpoint says of itself, in `manifest.json`. It is written last: a folder with a sound manifest
/// and the files it lists is a complete checkpoint, and nothing else is.
struct CheckpointManifest {
  /// What this release writes. A reader refuses greater numbers, since it can't know what they mean.
  static constexpr int64_t kFormatVersion = 1;
  static constexpr const char* kFileName = "manifest.json";

  int64_t format_version = kFormatVersion;
  std::string accelerate_version = {};  ///< of the program that wrote it; empty: filled in on writing
  std::string time = {};                ///< UTC, "2026-01-31T12:00:00.000000Z"; empty: filled in on writing
  int64_t iteration = 0;                ///< number of the checkpoint, as in checkpoint_<iteration>
  int64_t optimizer_steps = 0;          ///< taken so far
  int64_t epoch = 0;                    ///< that was running
  int64_t world_size = 1;               ///< ranks that wrote it
  std::string strategy = {};            ///< "single", "ddp", "fsdp", ...
  std::string extra = "{}";             ///< values of the writer's own: one JSON object, as text
  std::vector<CheckpointFile> files = {};  ///< sorted by path on writing; the manifest is not among them

  uint64_t total_bytes() const;
};

/// The manifest as text. It ends with a checksum of itself, so that a changed digit is found as well.
/// @throws CheckpointError where `extra` is no JSON object, or a file's path is not below the folder, is
/// there twice or is the manifest's own.
std::string write_manifest(const CheckpointManifest& manifest);

/// The reverse. `path` is for messages only.
/// @throws CheckpointError saying exactly what is wrong: cut off (with the place), no manifest of ours, a
/// newer format version, a missing or misshapen member (by name), a path that leads out of the folder, a
/// checksum that does not fit.
CheckpointManifest parse_manifest(const std::string& text, const std::string& path);

/// Reads `folder`/manifest.json.
/// @throws CheckpointError as parse_manifest() and FileSystem do.
CheckpointManifest read_manifest(FileSystem& files, const std::string& folder);

/// Its text alone, unread.
std::string read_manifest_text(FileSystem& files, const std::string& folder);

/// Now, as manifests write it.
std::string utc_time_text();

/// Why `path` can't name a file of a checkpoint, or "" where it can: relative, parts not empty, "." or "..".
std::string problem_with_file_path(const std::string& path);

}  // namespace accelerate
