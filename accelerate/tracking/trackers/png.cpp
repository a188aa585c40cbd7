#include "accelerate/tracking/trackers/png.h"

#include <zlib.h>

#include <limits>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

void put_big_endian(std::string& out, uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(number >> shift & 0xff);
}

void put_chunk(std::string& out, std::string_view type, std::string_view data) {
  put_big_endian(out, static_cast<uint32_t>(data.size()));
  const size_t checked_from = out.size();
  out += type;
  out += data;
  const auto* bytes = reinterpret_cast<const Bytef*>(out.data() + checked_from);
  put_big_endian(out, static_cast<uint32_t>(::crc32_z(0, bytes, out.size() - checked_from)));
}

std::string deflate_all(const std::string& data) {
  uLongf size = ::compressBound(data.size());
  std::string out(size, '\0');
  // Level 1: pictures are written while a model trains.
  const int result = ::compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                                 reinterpret_cast<const Bytef*>(data.data()), data.size(), 1);
  if (result != Z_OK) throw Error({.what = concat("zlib could not compress an image: ", ::zError(result))});
  out.resize(size);
  return out;
}

void check(const ImageView& image) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const bool sizes_ok = image.height > 0 && image.width > 0 && image.height <= kMost &&
                        image.width <= kMost && image.channels >= 1 && image.channels <= 4;
  const auto most_pixels = static_cast<int64_t>(uint64_t{1} << 31);  // a chunk's length has 31 bits
  if (!sizes_ok || image.height > most_pixels / 4 / image.width) {
    throw ConfigError({.what = "log_image",
                       .expected = "height and width above 0, at most 2^29 pixels, and 1 to 4 channels",
                       .got = concat(image.height, " x ", image.width, " x ", image.channels)});
  }
  const auto wanted = static_cast<size_t>(image.height * image.width * image.channels);
  if (image.pixels.size() != wanted) {
    throw ConfigError({.what = "log_image",
                       .expected = concat(wanted, " bytes (height x width x channels = ", image.height, " x ",
                                          image.width, " x ", image.channels, ")"),
                       .got = concat(image.pixels.size())});
  }
}

}  // namespace

std::string encode_png(const ImageView& image) {
  check(image);
  constexpr char kColourTypes[] = {0, 4, 2, 6};  // by channels: grey, grey and alpha, RGB, RGB and alpha
  std::string header;
  put_big_endian(header, static_cast<uint32_t>(image.width));
  put_big_endian(header, static_cast<uint32_t>(image.height));
  header += char{8};
  header += kColourTypes[image.channels - 1];
  header.append(3, '\0');  // deflate, the standard filters, not interlaced
  const auto row_bytes = static_cast<size_t>(image.width * image.channels);
  std::string rows;
  rows.reserve((row_bytes + 1) * static_cast<size_t>(image.height));
  for (size_t at = 0; at < image.pixels.size(); at += row_bytes) {
    rows += '\0';  // filter: none
    rows.append(reinterpret_cast<const char*>(image.pixels.data()) + at, row_bytes);
  }
  std::string out = "\x89PNG\r\n\x1a\n";
  put_chunk(out, "IHDR", header);
  put_chunk(out, "IDAT", deflate_all(rows));
  put_chunk(out, "IEND", "");
  return out;
}

}  // namespace accelerate
