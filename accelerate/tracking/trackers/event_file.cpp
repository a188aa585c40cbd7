#include "accelerate/tracking/trackers/event_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <protozero/pbf_writer.hpp>

namespace accelerate {
namespace {

using protozero::pbf_writer;

// Field numbers, by message.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace summary {
constexpr int kValue = 1;
}
namespace value {
constexpr int kTag = 1, kSimpleValue = 2, kImage = 4, kHistogram = 5, kTensor = 8, kMetadata = 9;
}
namespace metadata {
constexpr int kPluginData = 1;
}
namespace plugin_data {
constexpr int kName = 1, kContent = 2;
}
namespace image {
constexpr int kHeight = 1, kWidth = 2, kChannels = 3, kBytes = 4;
}
namespace histogram {
constexpr int kMin = 1, kMax = 2, kCount = 3, kSum = 4, kSumSquares = 5, kLimits = 6, kCounts = 7;
}
namespace tensor {
constexpr int kType = 1, kShape = 2, kStrings = 8;
constexpr int kTypeString = 7;
}  // namespace tensor
namespace shape {
constexpr int kDimension = 2, kSize = 1;
}
namespace hparams {
constexpr int kSessionStart = 3, kSessionEnd = 4;
constexpr int kStartHparams = 1, kStartGroup = 4, kStartTime = 5;
constexpr int kEndStatus = 1, kEndTime = 2, kSuccess = 1, kFailure = 2;
constexpr int kMapKey = 1, kMapValue = 2;
// google.protobuf.Value
constexpr int kNumber = 2, kString = 3, kBool = 4;
}  // namespace hparams

void put_little_endian(std::string& out, uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i) & 0xff);
}

// `fill` writes the Summary.Value.
template <class Fill>
std::string summary_event(EventTime time, std::string_view tag, Fill&& fill) {
  std::string data;
  pbf_writer writer(data);
  writer.add_double(event::kWallTime, time.wall_time);
  if (time.step != 0) writer.add_int64(event::kStep, time.step);  // 0 is what nothing means
  {
    pbf_writer summary_writer(writer, event::kSummary);
    pbf_writer value_writer(summary_writer, summary::kValue);
    value_writer.add_string(value::kTag, tag.data(), tag.size());
    fill(value_writer);
  }
  return data;
}

void put_metadata(pbf_writer& value_writer, std::string_view plugin, std::string_view content) {
  pbf_writer metadata_writer(value_writer, value::kMetadata);
  pbf_writer plugin_writer(metadata_writer, metadata::kPluginData);
  plugin_writer.add_string(plugin_data::kName, plugin.data(), plugin.size());
  if (!content.empty()) plugin_writer.add_bytes(plugin_data::kContent, content.data(), content.size());
}

void put_value(pbf_writer& writer, const TrackedValue& value) {
  pbf_writer value_writer(writer, hparams::kMapValue);
  if (value.is_text()) {
    value_writer.add_string(hparams::kString, value.text());
  } else if (value.is_bool()) {
    value_writer.add_bool(hparams::kBool, *value.number() != 0);
  } else {
    value_writer.add_double(hparams::kNumber, *value.number());
  }
}

std::string hparams_event(double wall_time, std::string_view tag, const std::string& content) {
  return summary_event({wall_time, 0}, tag,
                       [&](pbf_writer& writer) { put_metadata(writer, "hparams", content); });
}

std::vector<double> make_bucket_limits() {
  std::vector<double> positive;
  for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
  std::vector<double> out;
  for (auto limit = positive.rbegin(); limit != positive.rend(); ++limit) out.push_back(-*limit);
  out.push_back(0);
  out.insert(out.end(), positive.begin(), positive.end());
  out.push_back(std::numeric_limits<double>::max());
  return out;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < table.size(); ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
      table[i] = crc;
    }
    return table;
  }();
  uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffffu;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string event_record(std::string_view data) {
  std::string out;
  put_little_endian(out, data.size(), 8);
  put_little_endian(out, masked_crc32c(out), 4);
  out += data;
  put_little_endian(out, masked_crc32c(data), 4);
  return out;
}

std::string version_event(double wall_time) {
  std::string data;
  pbf_writer writer(data);
  writer.add_double(event::kWallTime, wall_time);
  writer.add_string(event::kFileVersion, "brain.Event:2");
  return data;
}

std::string scalar_event(EventTime time, std::string_view tag, double number) {
  return summary_event(time, tag, [&](pbf_writer& writer) {
    writer.add_float(value::kSimpleValue, static_cast<float>(number));
  });
}

std::string text_event(EventTime time, std::string_view tag, std::string_view text) {
  return summary_event(time, tag, [&](pbf_writer& writer) {
    {
      pbf_writer tensor_writer(writer, value::kTensor);
      tensor_writer.add_enum(tensor::kType, tensor::kTypeString);
      {
        pbf_writer shape_writer(tensor_writer, tensor::kShape);
        pbf_writer dimension_writer(shape_writer, shape::kDimension);
        dimension_writer.add_int64(shape::kSize, 1);
      }
      tensor_writer.add_bytes(tensor::kStrings, text.data(), text.size());
    }
    put_metadata(writer, "text", "");
  });
}

std::string image_event(EventTime time, std::string_view tag, int64_t height, int64_t width, int64_t channels,
                        std::string_view png) {
  return summary_event(time, tag, [&](pbf_writer& writer) {
    pbf_writer image_writer(writer, value::kImage);
    image_writer.add_int32(image::kHeight, static_cast<int32_t>(height));
    image_writer.add_int32(image::kWidth, static_cast<int32_t>(width));
    image_writer.add_int32(image::kChannels, static_cast<int32_t>(channels));
    image_writer.add_bytes(image::kBytes, png.data(), png.size());
  });
}

HistogramBuckets histogram_buckets(std::span<const float> values) {
  static const std::vector<double> kLimits = make_bucket_limits();
  HistogramBuckets out;
  out.min = std::numeric_limits<double>::max();
  out.max = std::numeric_limits<double>::lowest();
  std::vector<double> counts(kLimits.size());
  for (const float given : values) {
    const double number = given;
    if (!std::isfinite(number)) continue;
    out.min = std::min(out.min, number);
    out.max = std::max(out.max, number);
    out.count += 1;
    out.sum += number;
    out.sum_squares += number * number;
    const auto bucket = std::upper_bound(kLimits.begin(), kLimits.end(), number) - kLimits.begin();
    counts[std::min(static_cast<size_t>(bucket), counts.size() - 1)] += 1;
  }
  if (out.count == 0) return {.limits = {kLimits.back()}, .counts = {0}};
  const auto used = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), used) - counts.begin();
  const auto last = counts.rend() - std::find_if(counts.rbegin(), counts.rend(), used);
  // The first bucket's lower end is the limit before it, so that one stays, with no values.
  const auto begin = std::max<std::ptrdiff_t>(first - 1, 0);
  out.limits.assign(kLimits.begin() + begin, kLimits.begin() + last);
  out.counts.assign(counts.begin() + begin, counts.begin() + last);
  return out;
}

std::string histogram_event(EventTime time, std::string_view tag, std::span<const float> values) {
  const HistogramBuckets buckets = histogram_buckets(values);
  return summary_event(time, tag, [&](pbf_writer& writer) {
    pbf_writer histogram_writer(writer, value::kHistogram);
    histogram_writer.add_double(histogram::kMin, buckets.min);
    histogram_writer.add_double(histogram::kMax, buckets.max);
    histogram_writer.add_double(histogram::kCount, buckets.count);
    histogram_writer.add_double(histogram::kSum, buckets.sum);
    histogram_writer.add_double(histogram::kSumSquares, buckets.sum_squares);
    histogram_writer.add_packed_double(histogram::kLimits, buckets.limits.begin(), buckets.limits.end());
    histogram_writer.add_packed_double(histogram::kCounts, buckets.counts.begin(), buckets.counts.end());
  });
}

std::string session_start_event(double wall_time, std::string_view group, const TrackedValues& values) {
  std::string content;
  pbf_writer writer(content);
  {
    pbf_writer start(writer, hparams::kSessionStart);
    for (const auto& [name, value] : values) {
      pbf_writer entry(start, hparams::kStartHparams);
      entry.add_string(hparams::kMapKey, name);
      put_value(entry, value);
    }
    start.add_string(hparams::kStartGroup, group.data(), group.size());
    start.add_double(hparams::kStartTime, wall_time);
  }
  return hparams_event(wall_time, "_hparams_/session_start_info", content);
}

std::string session_end_event(double wall_time, bool success) {
  std::string content;
  pbf_writer writer(content);
  {
    pbf_writer end(writer, hparams::kSessionEnd);
    end.add_enum(hparams::kEndStatus, success ? hparams::kSuccess : hparams::kFailure);
    end.add_double(hparams::kEndTime, wall_time);
  }
  return hparams_event(wall_time, "_hparams_/session_end_info", content);
}

}  // namespace accelerate
