#include "accelerate/core/file_system.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {

std::string parent_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string path_in(const std::string& folder, const std::string& name) {
  if (folder.empty() || folder == ".") return name;
  return folder.ends_with('/') ? folder + name : folder + "/" + name;
}

void write_file_atomically(FileSystem& files, const std::string& path,
                           const std::function<void(WritableFile&)>& fill, unsigned mode) {
  const std::string temporary = concat(path, ".tmp-", ::getpid());
  try {
    const std::unique_ptr<WritableFile> file = files.create(temporary, mode);
    fill(*file);
    file->sync();
    file->close();
    files.rename(temporary, path);
    files.sync_directory(parent_directory(path));
  } catch (...) {
    try {
      files.remove(temporary);
    } catch (const std::exception&) {  // the first problem is the one to report
    }
    throw;
  }
}

void write_file_atomically(FileSystem& files, const std::string& path, const std::string& content,
                           unsigned mode) {
  write_file_atomically(
      files, path,
      [&](WritableFile& file) { file.write(std::as_bytes(std::span(content.data(), content.size()))); },
      mode);
}

std::string read_whole_file(FileSystem& files, const std::string& path, uint64_t most_bytes) {
  const std::unique_ptr<ReadableFile> file = files.open(path);
  std::string out;
  constexpr size_t kStepBytes = 64 * 1024;
  for (size_t got = kStepBytes; got == kStepBytes;) {
    const size_t before = out.size();
    out.resize(before + kStepBytes);
    got = file->read(std::as_writable_bytes(std::span(out.data() + before, kStepBytes)));
    out.resize(before + got);
    if (out.size() > most_bytes) {
      throw CheckpointError({.what = concat("reading ", path),
                             .expected = concat("at most ", format_bytes(most_bytes)),
                             .got = "more"});
    }
  }
  return out;
}

void remove_tree(FileSystem& files, const std::string& path) {
  const std::optional<FileInfo> info = files.info(path);
  if (!info) return;
  if (info->kind != FileKind::kDirectory || info->is_link) {
    files.remove(path);
    return;
  }
  std::vector<std::string> names;
  try {
    names = files.list(path);
  } catch (const CheckpointError&) {
    if (!files.info(path)) return;
    throw;
  }
  for (const std::string& name : names) remove_tree(files, path_in(path, name));
  files.remove_directory(path);
}

void require_free_bytes(FileSystem& files, const std::string& folder, uint64_t needed_bytes) {
  std::string there = folder.empty() ? "." : folder;
  while (!files.exists(there) && there != "/" && there != ".") there = parent_directory(there);
  const std::optional<uint64_t> free = files.free_bytes(there);
  if (!free || *free >= needed_bytes) return;
  throw CheckpointError({.what = concat("not enough space in ", folder),
                         .expected = concat(needed_bytes, " bytes (", format_bytes(needed_bytes), ")"),
                         .got = concat(*free, " bytes free (", format_bytes(*free), ")"),
                         .hint = "Free some space there or choose another folder."});
}

}  // namespace accelerate
