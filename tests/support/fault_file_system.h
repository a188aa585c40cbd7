#pragma once

#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>

#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"

namespace accelerate::test {

// The process ends here: whatever is tried after this does nothing and throws the same.
struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("stopped") {}
};

enum class Fault {
  kNone,            // counts only
  kStop,            // at the N-th operation, of which a write is done by half, everything ends
  kFailOnce,        // the N-th operation fails
  kFailFromThenOn,  // it and all later ones
};

// Counts the operations on a file system and stops or fails at the N-th, as SQLite's crash tests do. With
// kStop only what changes something counts, since stopping elsewhere leaves the same behind; with EIO
// everything, reading too; with ENOSPC what takes space.
class FaultFileSystem : public FileSystem {
 public:
  FaultFileSystem(FileSystem& files, Fault fault, int64_t at, int error = EIO)
      : files_(files), fault_(fault), at_(at), error_(error) {}

  int64_t operations() const { return count_; }
  // Whether the N-th operation was reached.
  bool has_struck() const { return fault_ != Fault::kNone && count_ >= at_; }

  std::unique_ptr<WritableFile> create(const std::string& path, unsigned mode) override {
    before(Kind::kTakesSpace, "creating", path);
    return std::make_unique<Writer>(*this, files_.create(path, mode), path);
  }
  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    before(Kind::kReads, "opening", path);
    return std::make_unique<Reader>(*this, files_.open(path), path);
  }
  void rename(const std::string& from, const std::string& to) override {
    before(Kind::kTakesSpace, "renaming", from);
    files_.rename(from, to);
  }
  bool exchange(const std::string& a, const std::string& b) override {
    before(Kind::kChanges, "exchanging", a);
    return files_.exchange(a, b);
  }
  void remove(const std::string& path) override {
    before(Kind::kChanges, "removing", path);
    files_.remove(path);
  }
  void create_directory(const std::string& path) override {
    before(Kind::kTakesSpace, "creating the folder", path);
    files_.create_directory(path);
  }
  void create_directories(const std::string& path) override {
    before(Kind::kTakesSpace, "creating the folder", path);
    files_.create_directories(path);
  }
  void remove_directory(const std::string& path) override {
    before(Kind::kChanges, "removing the folder", path);
    files_.remove_directory(path);
  }
  void sync_file(const std::string& path) override {
    before(Kind::kTakesSpace, "syncing", path);
    files_.sync_file(path);
  }
  void sync_directory(const std::string& path) override {
    before(Kind::kTakesSpace, "syncing the folder", path);
    files_.sync_directory(path);
  }
  bool exists(const std::string& path) override {
    if (is_stopped()) throw Stopped();
    return files_.exists(path);
  }
  std::optional<FileInfo> info(const std::string& path) override {
    before(Kind::kReads, "looking at", path);
    return files_.info(path);
  }
  std::vector<std::string> list(const std::string& path) override {
    before(Kind::kReads, "reading the folder", path);
    return files_.list(path);
  }
  std::optional<uint64_t> free_bytes(const std::string& path) override { return files_.free_bytes(path); }
  LockAttempt try_lock(const std::string& path, LockMode mode, bool create_it) override {
    before(create_it ? Kind::kTakesSpace : Kind::kReads, "locking", path);
    return files_.try_lock(path, mode, create_it);
  }
  bool is_local(const std::string& path) override { return files_.is_local(path); }

 private:
  enum class Kind { kReads, kChanges, kTakesSpace };

  class Writer final : public WritableFile {
   public:
    Writer(FaultFileSystem& owner, std::unique_ptr<WritableFile> file, std::string path)
        : owner_(owner), file_(std::move(file)), path_(std::move(path)) {}
    void write(std::span<const std::byte> bytes) override {
      try {
        owner_.before(Kind::kTakesSpace, concat("writing ", bytes.size(), " bytes to"), path_);
      } catch (...) {
        if (owner_.is_first_) file_->write(bytes.first(bytes.size() / 2));
        throw;
      }
      file_->write(bytes);
    }
    void sync() override {
      owner_.before(Kind::kTakesSpace, "syncing", path_);
      file_->sync();
    }
    void close() override {
      owner_.before(Kind::kChanges, "closing", path_);
      file_->close();
    }

   private:
    FaultFileSystem& owner_;
    std::unique_ptr<WritableFile> file_;
    std::string path_;
  };

  class Reader final : public ReadableFile {
   public:
    Reader(FaultFileSystem& owner, std::unique_ptr<ReadableFile> file, std::string path)
        : owner_(owner), file_(std::move(file)), path_(std::move(path)) {}
    size_t read(std::span<std::byte> bytes) override {
      owner_.before(Kind::kReads, "reading", path_);
      return file_->read(bytes);
    }
    void seek(uint64_t offset) override { file_->seek(offset); }

   private:
    FaultFileSystem& owner_;
    std::unique_ptr<ReadableFile> file_;
    std::string path_;
  };

  bool is_stopped() const { return fault_ == Fault::kStop && count_ >= at_; }

  void before(Kind kind, const std::string& action, const std::string& path) {
    if (is_stopped()) {
      is_first_ = false;
      throw Stopped();
    }
    if (fault_ == Fault::kStop && kind == Kind::kReads) return;
    if (error_ == ENOSPC && fault_ != Fault::kStop && kind != Kind::kTakesSpace) return;
    ++count_;
    is_first_ = count_ == at_;
    if (fault_ == Fault::kStop && is_first_) throw Stopped();
    const bool fails =
        (fault_ == Fault::kFailOnce && is_first_) || (fault_ == Fault::kFailFromThenOn && count_ >= at_);
    if (fails) throw CheckpointError({.what = concat(action, " ", path), .got = errno_text(error_)});
  }

  FileSystem& files_;
  Fault fault_;
  int64_t at_;
  int error_;
  int64_t count_ = 0;
  bool is_first_ = false;
};

}  // namespace accelerate::test
