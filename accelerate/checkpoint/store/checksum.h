#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "accelerate/core/file_system.h"

namespace accelerate {

/// XXH3-64 (seed 0) of bytes that come in pieces, as `xxh128sum`'s sister `xxhsum -H3` prints it. It finds
/// damage by accident; it is no protection against somebody who changes files on purpose.
class Xxh3 {
 public:
  Xxh3();
  ~Xxh3();
  Xxh3(Xxh3&&) noexcept;
  Xxh3& operator=(Xxh3&&) noexcept;

  void update(std::span<const std::byte> bytes);
  /// Of all bytes so far; more may follow.
  uint64_t digest() const;

  static uint64_t of(std::string_view text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// 16 hexadecimal digits, lower case.
std::string checksum_text(uint64_t checksum);

/// The reverse; nothing for any other text.
std::optional<uint64_t> parse_checksum(std::string_view text);

/// A file that counts and sums what is written to it on its way to another file, which must outlive it.
class ChecksumFile final : public WritableFile {
 public:
  explicit ChecksumFile(WritableFile& file) : file_(file) {}

  void write(std::span<const std::byte> bytes) override {
    file_.write(bytes);
    sum_.update(bytes);
    size_bytes_ += bytes.size();
  }
  void sync() override { file_.sync(); }
  void close() override { file_.close(); }

  uint64_t size_bytes() const { return size_bytes_; }
  uint64_t checksum() const { return sum_.digest(); }

 private:
  WritableFile& file_;
  Xxh3 sum_;
  uint64_t size_bytes_ = 0;
};

}  // namespace accelerate
