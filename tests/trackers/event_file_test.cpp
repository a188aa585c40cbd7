// TensorBoard's event files, against what Python's own writers make of the same events
// (tests/parity/tensorboard_events_gen.py).
#include "accelerate/tracking/trackers/event_file.h"

#include <zlib.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerate/core/error.h"
#include "accelerate/tracking/trackers/png.h"
#include "launch_test_support.h"
#include "test_support.h"

using namespace accelerate;
using accelerate::testing::read_file;

namespace {

const nlohmann::json& golden() {
  static const nlohmann::json kGolden =
      nlohmann::json::parse(read_file(ACCELERATE_TEST_SOURCE_DIR "/tests/parity/tensorboard_events.json"));
  return kGolden;
}

std::string hex(const std::string& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

std::string record_of(const std::string& event) {
  return hex(event_record(event));
}

uint32_t big_endian(const std::string& bytes, size_t at) {
  uint32_t out = 0;
  for (size_t i = 0; i < 4; ++i) out = out << 8 | static_cast<unsigned char>(bytes[at + i]);
  return out;
}

}  // namespace

TEST_CASE("CRC-32C gives the values of RFC 3720") {
  std::string rising;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  CHECK(crc32c("") == 0);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  CHECK(crc32c(rising) == 0x46dd794e);
  CHECK(crc32c(std::string(rising.rbegin(), rising.rend())) == 0x113fdb5c);
  CHECK(crc32c("123456789") == 0xe3069283);
}

TEST_CASE("records equal Python's byte for byte") {
  const double wall = golden()["wall_time"];
  const EventTime time{wall, golden()["step"]};
  CHECK(record_of(version_event(wall)) == golden()["version"]);
  CHECK(record_of(scalar_event(time, "loss", 0.1)) == golden()["scalar"]);
  CHECK(record_of(scalar_event({wall, -1}, "loss", std::numeric_limits<double>::quiet_NaN())) ==
        golden()["scalar_nan"]);
  CHECK(record_of(text_event(time, "notes", "größer than <b>")) == golden()["text"]);
  CHECK(record_of(image_event(time, "picture", 2, 3, 1, "\x89PNG")) == golden()["image"]);
  CHECK(record_of(session_start_event(wall, "run-1", {{"lr", 0.125}})) == golden()["session_start"]);
  CHECK(record_of(session_end_event(wall, true)) == golden()["session_end"]);
}

TEST_CASE("histograms have the buckets of torch.utils.tensorboard") {
  REQUIRE(golden()["histograms"].size() == 5);
  for (const auto& expected : golden()["histograms"]) {
    const std::vector<double> given = expected["values"];
    const std::vector<float> values(given.begin(), given.end());
    const HistogramBuckets buckets = histogram_buckets(values);
    CHECK(buckets.min == expected["min"].get<double>());
    CHECK(buckets.max == expected["max"].get<double>());
    CHECK(buckets.count == expected["num"].get<double>());
    CHECK(buckets.sum == Approx(expected["sum"].get<double>()));
    CHECK(buckets.sum_squares == Approx(expected["sum_squares"].get<double>()));
    CHECK(buckets.limits == expected["limits"].get<std::vector<double>>());
    CHECK(buckets.counts == expected["counts"].get<std::vector<double>>());
  }
}

TEST_CASE("histograms leave out what is not finite, and may be empty") {
  const float bad[] = {NAN, INFINITY, -INFINITY, 2.0f};
  CHECK(histogram_buckets(bad).count == 1);
  CHECK(histogram_buckets(bad).max == 2);
  const HistogramBuckets none = histogram_buckets({});
  CHECK(none.count == 0);
  CHECK(none.limits.size() == none.counts.size());
  const float far[] = {1e30f, -1e30f};
  const HistogramBuckets outside = histogram_buckets(far);
  double counted = 0;
  for (const double count : outside.counts) counted += count;
  CHECK(counted == 2);
}

TEST_CASE("a PNG holds the pixels that it was given") {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < 2 * 3 * 3; ++i) pixels.push_back(static_cast<uint8_t>(i * 7));
  const std::string png = encode_png({pixels, 2, 3, 3});
  REQUIRE(png.size() > 57);
  CHECK(png.substr(0, 8) == "\x89PNG\r\n\x1a\n");
  CHECK(png.substr(12, 4) == "IHDR");
  CHECK(big_endian(png, 16) == 3);
  CHECK(big_endian(png, 20) == 2);
  CHECK(png.substr(24, 5) == std::string("\x08\x02\x00\x00\x00", 5));
  // Every chunk's checksum, by zlib; the pixels, by its inflate.
  std::string compressed;
  for (size_t at = 8; at < png.size();) {
    const uint32_t length = big_endian(png, at);
    const auto* type = reinterpret_cast<const Bytef*>(png.data() + at + 4);
    CHECK(::crc32(0, type, length + 4) == big_endian(png, at + 8 + length));
    if (png.substr(at + 4, 4) == "IDAT") compressed += png.substr(at + 8, length);
    at += 12 + length;
  }
  std::vector<uint8_t> rows(2 * 10);
  uLongf size = rows.size();
  REQUIRE(::uncompress(rows.data(), &size, reinterpret_cast<const Bytef*>(compressed.data()),
                       compressed.size()) == Z_OK);
  REQUIRE(size == rows.size());
  for (size_t row = 0; row < 2; ++row) {
    CHECK(rows[row * 10] == 0);
    CHECK(std::equal(pixels.begin() + static_cast<std::ptrdiff_t>(row * 9),
                     pixels.begin() + static_cast<std::ptrdiff_t>(row * 9 + 9),
                     rows.begin() + static_cast<std::ptrdiff_t>(row * 10 + 1)));
  }
}

TEST_CASE("images whose sizes do not fit are refused") {
  const std::vector<uint8_t> pixels(12);
  CHECK_THROWS_AS(encode_png({pixels, 2, 3, 3}), ConfigError);
  CHECK_THROWS_AS(encode_png({pixels, 0, 3, 1}), ConfigError);
  CHECK_THROWS_AS(encode_png({pixels, 2, -3, 1}), ConfigError);
  CHECK_THROWS_AS(encode_png({pixels, 2, 1, 6}), ConfigError);
  CHECK_THROWS_AS(encode_png({pixels, int64_t{1} << 40, int64_t{1} << 40, 1}), ConfigError);
  CHECK_NOTHROW(encode_png({pixels, 3, 1, 4}));
}
