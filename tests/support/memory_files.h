#pragma once

#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"

namespace accelerate::test {

// What a loss of power leaves of a MemoryFiles. The first is no loss of power but a killed process.
enum class PowerLoss {
  kNone,         // all that was written is there
  kAllUnsynced,  // files as of their last fsync, folders as of theirs
  kDataOnly,     // names are there, but not the bytes of files that were not synced (delayed allocation)
  kRandom,       // of each folder's changes since its fsync the first few, of each file some of its bytes
};

// A file system in memory that knows what has been synced, after leveldb's FaultInjectionTestEnv: a file's
// bytes are safe after its sync(), a name after the fsync of its folder. Renames are atomic, also when they
// are lost. Not thread-safe but for locks, which tests take from threads.
class MemoryFiles final : public FileSystem {
 public:
  struct Options {
    bool has_exchange = true;
    bool has_locks = true;
    bool is_local = true;
    uint64_t free_bytes = uint64_t{1} << 40;
  };

  MemoryFiles() : MemoryFiles(Options()) {}
  explicit MemoryFiles(Options options) : options_(options), root_(std::make_shared<Node>()) {
    root_->is_folder = true;
  }

  // The machine goes down and comes up again.
  void lose_power(PowerLoss loss, unsigned seed = 0) {
    std::mt19937 random(seed);
    locks_.clear();
    ++boot_;
    if (loss != PowerLoss::kNone) shrink(*root_, loss, random);
  }
  // A process ends: its locks go.
  void drop_locks() {
    locks_.clear();
    ++boot_;
  }

  std::unique_ptr<WritableFile> create(const std::string& path, unsigned) override {
    Node& folder = folder_of(path, "creating");
    const std::string name = last_part(path);
    auto found = folder.names.find(name);
    if (found == folder.names.end()) {
      found = folder.names.emplace(name, std::make_shared<Node>()).first;
      changed(folder);
    }
    if (found->second->is_folder) fail("creating", path, "Is a directory (21)");
    found->second->bytes.clear();
    return std::make_unique<Writer>(found->second);
  }

  std::unique_ptr<ReadableFile> open(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node || node->is_folder) fail("opening", path, node ? "Is a directory (21)" : kMissing);
    return std::make_unique<Reader>(node);
  }

  void rename(const std::string& from, const std::string& to) override {
    Node& folder = folder_of(from, "renaming");
    if (&folder != &folder_of(to, "renaming"))
      fail("renaming", from, "another folder, which is not modelled");
    const auto source = folder.names.find(last_part(from));
    if (source == folder.names.end()) fail("renaming", from, kMissing);
    const NodePtr node = source->second;
    const auto target = folder.names.find(last_part(to));
    if (target != folder.names.end() && target->second->is_folder && !target->second->names.empty()) {
      fail("renaming to", to, "Directory not empty (39)");
    }
    folder.names.erase(source);
    folder.names[last_part(to)] = node;
    changed(folder);
  }

  bool exchange(const std::string& a, const std::string& b) override {
    if (!options_.has_exchange) return false;
    Node& folder = folder_of(a, "exchanging");
    const auto first = folder.names.find(last_part(a));
    const auto second = folder.names.find(last_part(b));
    if (first == folder.names.end() || second == folder.names.end()) fail("exchanging", a, kMissing);
    std::swap(first->second, second->second);
    changed(folder);
    return true;
  }

  void remove(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node) return;
    if (node->is_folder) fail("removing", path, "Is a directory (21)");
    Node& folder = folder_of(path, "removing");
    folder.names.erase(last_part(path));
    changed(folder);
  }

  void create_directory(const std::string& path) override {
    Node& folder = folder_of(path, "creating the folder");
    if (folder.names.contains(last_part(path))) fail("creating the folder", path, "File exists (17)");
    auto node = std::make_shared<Node>();
    node->is_folder = true;
    folder.names[last_part(path)] = node;
    changed(folder);
  }

  void create_directories(const std::string& path) override {
    std::string at;
    for (const std::string& part : split(path, '/')) {
      at = at.empty() ? part : at + "/" + part;
      const NodePtr node = find(at);
      if (node && !node->is_folder) fail("creating the folder", at, "File exists (17)");
      if (!node) create_directory(at);
    }
  }

  void remove_directory(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node) return;
    if (!node->names.empty()) fail("removing the folder", path, "Directory not empty (39)");
    Node& folder = folder_of(path, "removing the folder");
    folder.names.erase(last_part(path));
    changed(folder);
  }

  void sync_file(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node || node->is_folder) fail("syncing", path, kMissing);
    node->synced = node->bytes;
  }

  void sync_directory(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node || !node->is_folder) fail("syncing the folder", path, kMissing);
    node->history = {node->names};
  }

  bool exists(const std::string& path) override { return find(path) != nullptr; }

  std::optional<FileInfo> info(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node) return std::nullopt;
    return FileInfo{.kind = node->is_folder ? FileKind::kDirectory : FileKind::kFile,
                    .size_bytes = node->bytes.size(),
                    .modified_s = node->modified_s};
  }

  std::vector<std::string> list(const std::string& path) override {
    const NodePtr node = find(path);
    if (!node || !node->is_folder) fail("reading the folder", path, kMissing);
    std::vector<std::string> out;
    for (const auto& [name, child] : node->names) out.push_back(name);
    return out;
  }

  std::optional<uint64_t> free_bytes(const std::string&) override { return options_.free_bytes; }

  LockAttempt try_lock(const std::string& path, LockMode mode, bool create_it) override {
    NodePtr node = find(path);
    if (!node && !create_it) return {LockState::kMissing, nullptr};
    if (!node) create(path, 0644);
    node = find(path);
    if (!options_.has_locks) return {LockState::kUnsupported, nullptr};
    int& holders = locks_[node.get()];  // -1: one exclusive
    if (holders < 0 || (holders > 0 && mode == LockMode::kExclusive))
      return {LockState::kHeldByOthers, nullptr};
    holders = mode == LockMode::kExclusive ? -1 : holders + 1;
    return {LockState::kTaken, std::make_unique<Lock>(*this, node)};
  }

  bool is_local(const std::string&) override { return options_.is_local; }

  // For tests that damage files and make old ones.
  std::string& content(const std::string& path) { return find(path)->bytes; }
  void set_modified(const std::string& path, int64_t seconds) { find(path)->modified_s = seconds; }

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePtr>;
  static constexpr const char* kMissing = "No such file or directory (2)";

  struct Node {
    bool is_folder = false;
    int64_t modified_s = static_cast<int64_t>(std::time(nullptr));
    std::string bytes;
    std::optional<std::string> synced;  // nothing: never
    Names names;
    std::vector<Names> history = {Names()};  // as of the last fsync, then after each change
  };

  class Writer final : public WritableFile {
   public:
    explicit Writer(NodePtr node) : node_(std::move(node)) {}
    void write(std::span<const std::byte> bytes) override {
      node_->bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    void sync() override { node_->synced = node_->bytes; }
    void close() override {}

   private:
    NodePtr node_;
  };

  class Reader final : public ReadableFile {
   public:
    explicit Reader(NodePtr node) : node_(std::move(node)) {}
    size_t read(std::span<std::byte> bytes) override {
      const size_t begin = std::min(offset_, node_->bytes.size());
      const size_t got = std::min(bytes.size(), node_->bytes.size() - begin);
      std::memcpy(bytes.data(), node_->bytes.data() + begin, got);
      offset_ = begin + got;
      return got;
    }
    void seek(uint64_t offset) override { offset_ = offset; }

   private:
    NodePtr node_;
    size_t offset_ = 0;
  };

  class Lock final : public FileLock {
   public:
    Lock(MemoryFiles& files, NodePtr node) : files_(files), node_(std::move(node)), boot_(files.boot_) {}
    ~Lock() override {
      if (files_.boot_ != boot_) return;
      int& holders = files_.locks_[node_.get()];
      holders = holders < 0 ? 0 : holders - 1;
    }

   private:
    MemoryFiles& files_;
    NodePtr node_;
    int boot_;
  };

  static void changed(Node& folder) { folder.history.push_back(folder.names); }

  [[noreturn]] static void fail(const std::string& action, const std::string& path, const std::string& why) {
    throw CheckpointError({.what = concat(action, " ", path), .got = why});
  }

  static std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  NodePtr find(const std::string& path) const {
    NodePtr node = root_;
    if (path == ".") return node;
    for (const std::string& part : split(path, '/')) {
      const auto found = node->names.find(part);
      if (!node->is_folder || found == node->names.end()) return nullptr;
      node = found->second;
    }
    return node;
  }

  Node& folder_of(const std::string& path, const char* action) const {
    const NodePtr folder = find(parent_directory(path));
    if (!folder || !folder->is_folder) fail(action, path, kMissing);
    return *folder;
  }

  static size_t below(std::mt19937& random, size_t limit) { return random() % limit; }

  void shrink(Node& node, PowerLoss loss, std::mt19937& random) {
    if (!node.is_folder) {
      const std::string safe = node.synced.value_or("");
      if (safe == node.bytes) return;
      if (loss == PowerLoss::kRandom) {
        node.bytes.resize(below(random, node.bytes.size() + 1));
      } else {
        node.bytes = safe;
      }
      node.synced = node.bytes;
      return;
    }
    if (loss == PowerLoss::kAllUnsynced) node.names = node.history.front();
    if (loss == PowerLoss::kRandom) node.names = node.history[below(random, node.history.size())];
    node.history = {node.names};
    for (const auto& [name, child] : node.names) shrink(*child, loss, random);
  }

  Options options_;
  NodePtr root_;
  std::map<const Node*, int> locks_;
  int boot_ = 0;
};

}  // namespace accelerate::test
