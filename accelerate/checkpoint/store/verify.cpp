#include "accelerate/checkpoint/store/verify.h"

#include <algorithm>
#include <set>

#include "accelerate/checkpoint/store/checksum.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr size_t kMostInOneLine = 3;

// The problem with a file's size or kind, or "".
std::string size_problem(FileSystem& files, const std::string& path, uint64_t size_bytes) {
  const std::optional<FileInfo> info = files.info(path);
  if (!info) return "missing";
  if (info->kind != FileKind::kFile) return "no regular file";
  if (info->size_bytes < size_bytes)
    return concat("cut off: ", info->size_bytes, " of ", size_bytes, " bytes are there");
  if (info->size_bytes > size_bytes)
    return concat("too long: ", info->size_bytes, " bytes where ", size_bytes, " belong");
  return {};
}

uint64_t sum_file(FileSystem& files, const std::string& path, std::vector<std::byte>& buffer,
                  VerifyProgress& state, const VerifyCallback& progress) {
  const std::unique_ptr<ReadableFile> file = files.open(path);
  Xxh3 sum;
  for (;;) {
    const size_t got = file->read(buffer);
    sum.update(std::span(buffer.data(), got));
    state.done_bytes += got;
    if (progress) progress(state);
    if (got < buffer.size()) return sum.digest();
  }
}

void find_other_files(FileSystem& files, const std::string& folder, const std::string& below,
                      const std::set<std::string>& known, std::vector<std::string>& out) {
  for (const std::string& name : files.list(below.empty() ? folder : path_in(folder, below))) {
    const std::string relative = below.empty() ? name : concat(below, "/", name);
    const std::optional<FileInfo> info = files.info(path_in(folder, relative));
    if (info && info->kind == FileKind::kDirectory && !info->is_link) {
      find_other_files(files, folder, relative, known, out);
    } else if (!known.contains(relative)) {
      out.push_back(relative);
    }
  }
}

void check_files(FileSystem& files, const std::string& folder, VerifyLevel level,
                 const VerifyCallback& progress, CheckpointVerification& out) {
  std::vector<std::byte> buffer(level == VerifyLevel::kFull ? kPieceBytes : 0);
  VerifyProgress state{.total_bytes = out.manifest->total_bytes(), .file = {}};
  for (const CheckpointFile& file : out.manifest->files) {
    const std::string path = path_in(folder, file.path);
    try {
      std::string problem = size_problem(files, path, file.size_bytes);
      if (problem.empty() && level == VerifyLevel::kFull) {
        state.file = file.path;
        const uint64_t sum = sum_file(files, path, buffer, state, progress);
        if (sum != file.xxh3_64) {
          problem = concat("damaged: its checksum is ", checksum_text(sum), " and should be ",
                           checksum_text(file.xxh3_64));
        }
      }
      if (!problem.empty()) out.problems.push_back({file.path, problem});
    } catch (const CheckpointError& error) {
      out.problems.push_back({file.path, error.what(), true});
    }
  }
}

}  // namespace

bool CheckpointVerification::unreadable() const {
  return std::any_of(problems.begin(), problems.end(),
                     [](const CheckpointProblem& problem) { return problem.is_unreadable; });
}

std::string CheckpointVerification::reason() const {
  std::string out;
  for (size_t i = 0; i < std::min(problems.size(), kMostInOneLine); ++i) {
    if (i > 0) out += "; ";
    out += problems[i].path.empty() ? problems[i].what : concat(problems[i].path, ": ", problems[i].what);
  }
  if (problems.size() > kMostInOneLine) out += concat("; and ", problems.size() - kMostInOneLine, " more");
  return out;
}

CheckpointVerification verify_checkpoint(FileSystem& files, const std::string& folder, VerifyLevel level,
                                         const VerifyCallback& progress) {
  CheckpointVerification out;
  std::string text;
  try {
    const std::optional<FileInfo> info = files.info(folder);
    if (!info || info->kind != FileKind::kDirectory) {
      out.problems.push_back({"", info ? "no folder" : "not there"});
      return out;
    }
    if (!files.info(path_in(folder, CheckpointManifest::kFileName))) {
      out.problems.push_back({"", concat("no ", CheckpointManifest::kFileName,
                                         " in it: copied in part, or written by another program")});
      return out;
    }
    text = read_manifest_text(files, folder);
  } catch (const CheckpointError& error) {
    out.problems.push_back({CheckpointManifest::kFileName, error.what(), true});
    return out;
  }
  try {
    out.manifest = parse_manifest(text, path_in(folder, CheckpointManifest::kFileName));
  } catch (const CheckpointError& error) {
    out.problems.push_back({CheckpointManifest::kFileName, error.what()});
    return out;
  }
  check_files(files, folder, level, progress, out);
  try {
    std::set<std::string> known = {CheckpointManifest::kFileName};
    for (const CheckpointFile& file : out.manifest->files) known.insert(file.path);
    find_other_files(files, folder, "", known, out.other_files);
  } catch (const CheckpointError& error) {
    out.problems.push_back({"", error.what(), true});
  }
  return out;
}

}  // namespace accelerate
