#include <zlib.h>

#include <cstring>

#include "accelerate/core/error.h"
#include "accelerate/core/file_mapping.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/sources/npy_format.h"
#include "accelerate/data/sources/sources.h"

namespace accelerate {
namespace {

// An .npz file is a zip archive (PKWARE's APPNOTE.TXT gives the layout). It is read from its central
// directory, which alone has the sizes when the archive was written as a stream.
constexpr uint32_t kEndOfDirectory = 0x06054b50;
constexpr uint32_t kZip64EndOfDirectory = 0x06064b50;
constexpr uint32_t kZip64Locator = 0x07064b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kLocalHeader = 0x04034b50;

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw DataError({.what = concat(path, " is no complete .npz archive: ", what)});
}

// Little-endian numbers out of the file, never past its end.
class Reader {
 public:
  Reader(std::span<std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}
  uint64_t number(uint64_t at, size_t width) const {
    const auto part = slice(at, width);
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i) value |= static_cast<uint64_t>(part[i]) << (8 * i);
    return value;
  }
  std::span<std::byte> slice(uint64_t at, uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) damaged(path_, "it ends too early");
    return bytes_.subspan(at, size);
  }
  size_t size() const { return bytes_.size(); }

 private:
  std::span<std::byte> bytes_;
  const std::string& path_;
};

struct Member {
  std::string name;
  uint64_t method = 0;
  uint64_t packed_bytes = 0;
  uint64_t size_bytes = 0;
  uint64_t header_at = 0;
};

// Sizes and offsets that do not fit 32 bits stand in an extra field, in this order, only those that are
// needed.
void read_zip64(const Reader& file, uint64_t at, uint64_t length, Member& member) {
  for (uint64_t end = at + length; at + 4 <= end;) {
    const uint64_t kind = file.number(at, 2);
    const uint64_t size = file.number(at + 2, 2);
    if (kind == 1) {
      uint64_t field = at + 4;
      for (uint64_t* value : {&member.size_bytes, &member.packed_bytes, &member.header_at}) {
        if (*value != 0xFFFFFFFF) continue;
        *value = file.number(field, 8);
        field += 8;
      }
    }
    at += 4 + size;
  }
}

std::vector<Member> read_directory(const Reader& file, const std::string& path) {
  if (file.size() < 22) damaged(path, "it is too short");
  uint64_t end = file.size() - 22;
  while (file.number(end, 4) != kEndOfDirectory) {
    if (end == 0 || file.size() - end > 65557) damaged(path, "it has no directory at its end");
    --end;
  }
  uint64_t count = file.number(end + 10, 2);
  uint64_t at = file.number(end + 16, 4);
  if ((count == 0xFFFF || at == 0xFFFFFFFF) && end >= 20 && file.number(end - 20, 4) == kZip64Locator) {
    const uint64_t record = file.number(end - 20 + 8, 8);
    if (file.number(record, 4) != kZip64EndOfDirectory)
      damaged(path, "its 64-bit directory is not where it should be");
    count = file.number(record + 32, 8);
    at = file.number(record + 48, 8);
  }
  std::vector<Member> members;
  for (uint64_t i = 0; i < count; ++i) {
    if (file.number(at, 4) != kDirectoryEntry) damaged(path, "its directory is damaged");
    Member member;
    member.method = file.number(at + 10, 2);
    member.packed_bytes = file.number(at + 20, 4);
    member.size_bytes = file.number(at + 24, 4);
    member.header_at = file.number(at + 42, 4);
    const uint64_t name_bytes = file.number(at + 28, 2);
    const uint64_t extra_bytes = file.number(at + 30, 2);
    const auto name = file.slice(at + 46, name_bytes);
    member.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
    read_zip64(file, at + 46 + name_bytes, extra_bytes, member);
    at += 46 + name_bytes + extra_bytes + file.number(at + 32, 2);
    members.push_back(std::move(member));
  }
  return members;
}

std::shared_ptr<std::vector<std::byte>> unpack(std::span<std::byte> packed, uint64_t size_bytes,
                                               const std::string& name) {
  auto out = std::make_shared<std::vector<std::byte>>(size_bytes);
  z_stream stream{};
  if (::inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw DataError({.what = "zlib could not start"});
  // zlib counts in 32 bits, so that both sides go piece by piece.
  constexpr uint64_t kPiece = 1U << 30;
  uint64_t in_at = 0;
  uint64_t out_at = 0;
  int result = Z_OK;
  while (result == Z_OK) {
    stream.next_in = reinterpret_cast<Bytef*>(packed.data() + in_at);
    stream.avail_in = static_cast<uInt>(std::min<uint64_t>(kPiece, packed.size() - in_at));
    stream.next_out = reinterpret_cast<Bytef*>(out->data() + out_at);
    stream.avail_out = static_cast<uInt>(std::min<uint64_t>(kPiece, size_bytes - out_at));
    const uInt in_before = stream.avail_in;
    const uInt out_before = stream.avail_out;
    result = ::inflate(&stream, Z_NO_FLUSH);
    in_at += in_before - stream.avail_in;
    out_at += out_before - stream.avail_out;
  }
  ::inflateEnd(&stream);
  if (result != Z_STREAM_END || out_at != size_bytes)
    throw DataError({.what = concat(name, " is damaged: it does not unpack")});
  return out;
}

}  // namespace

TensorDict load_npz(const std::string& path) {
  auto mapping = std::make_shared<FileMapping>(path);
  const Reader file(mapping->bytes(), mapping->path());
  TensorDict out;
  for (const Member& member : read_directory(file, path)) {
    const std::string name = concat(path, ":", member.name);
    if (file.number(member.header_at, 4) != kLocalHeader)
      damaged(path, concat(member.name, " is not where it should be"));
    const uint64_t begin =
        member.header_at + 30 + file.number(member.header_at + 26, 2) + file.number(member.header_at + 28, 2);
    const auto packed = file.slice(begin, member.packed_bytes);
    std::string key = member.name;
    if (key.ends_with(".npy")) key.resize(key.size() - 4);
    if (member.method == 0) {
      out[key] = detail::parse_npy(packed, mapping, name);
    } else if (member.method == 8) {
      // No compressor packs better than about 1032:1, so a larger promise is a damaged or hostile file.
      if (member.size_bytes / 1100 > member.packed_bytes)
        damaged(path, concat(member.name, " names an impossible size"));
      auto data = unpack(packed, member.size_bytes, name);
      const std::span<std::byte> bytes(*data);
      out[key] = detail::parse_npy(bytes, std::move(data), name);
    } else {
      throw DataError({.what = concat(name, ": compression method ", member.method),
                       .expected = "none or deflate, as numpy.savez and savez_compressed write"});
    }
  }
  return out;
}

}  // namespace accelerate
