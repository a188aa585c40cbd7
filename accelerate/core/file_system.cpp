#include "accelerate/core/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "accelerate/core/error.h"
#include "accelerate/core/file_size_limit.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/unique_fd.h"

namespace accelerate {
namespace {

[[noreturn]] void fail(const std::string& action, const std::string& path, int error) {
  std::string hint;
  if (error == ENOSPC || error == EDQUOT) hint = "Free some space there or choose another folder.";
  if (error == EACCES || error == EPERM || error == EROFS)
    hint = "Check who may write there, or choose another folder.";
  if (error == ENOENT) hint = "Check the path.";
  if (error == EFBIG) hint = "The limit on file sizes is too small; raise it with ulimit -f.";
  throw CheckpointError({.what = concat(action, " ", path), .got = errno_text(error), .hint = hint});
}

class SystemFile final : public WritableFile {
 public:
  SystemFile(std::string path, unsigned mode)
      : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode)) {
    if (!fd_) fail("creating", path_, errno);
  }

  void write(std::span<const std::byte> bytes) override {
    const FileSizeLimitAsError limit;
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(concat("writing ", bytes.size(), " bytes to"), path_, errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  void sync() override {
    if (::fsync(fd_.get()) != 0) fail("syncing", path_, errno);
  }

  void close() override {
    const int fd = fd_.release();
    if (fd >= 0 && ::close(fd) != 0) fail("closing", path_, errno);
  }

 private:
  std::string path_;
  UniqueFd fd_;
};

class SystemFiles final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::string& path, unsigned mode) override {
    return std::make_unique<SystemFile>(path, mode);
  }

  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) fail(concat("renaming ", from, " to"), to, errno);
  }

  void remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail("removing", path, errno);
  }

  void create_directories(const std::string& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) fail("creating the folder", path, error.value());
  }

  void sync_directory(const std::string& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) fail("opening the folder", path, errno);
    // Some file systems (network ones) can't sync folders and say EINVAL; nothing better is to be had there.
    if (::fsync(fd.get()) != 0 && errno != EINVAL) fail("syncing the folder", path, errno);
  }

  bool exists(const std::string& path) override { return ::access(path.c_str(), F_OK) == 0; }

  std::vector<std::string> list(const std::string& path) override {
    std::error_code error;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) fail("reading the folder", path, error.value());
    std::sort(names.begin(), names.end());
    return names;
  }
};

}  // namespace

FileSystem& system_files() {
  static SystemFiles files;
  return files;
}

std::string parent_directory(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
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

}  // namespace accelerate
