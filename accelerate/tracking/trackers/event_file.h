#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/trackers/tracked_value.h"

// TensorBoard's event files: a sequence of records, each a protocol buffer `Event`. Sources: TFRecord format
// (tensorflow.org/tutorials/load_data/tfrecord), event.proto, summary.proto, histogram's and the text, images
// and hparams plugins' plugin_data.proto of tensorboard 2.x.

namespace accelerate {

/// CRC-32C (Castagnoli, reflected polynomial 0x82f63b78), as in RFC 3720 B.4.
uint32_t crc32c(std::string_view bytes);

/// The checksum that records carry: rotated right by 15 bits, plus 0xa282ead8.
uint32_t masked_crc32c(std::string_view bytes);

/// A record: length (8 bytes, little endian), its checksum, data, its checksum.
std::string event_record(std::string_view data);

/// The Event that every file begins with.
std::string version_event(double wall_time);

/// When something happened.
struct EventTime {
  double wall_time = 0;  ///< seconds since 1970
  int64_t step = 0;
};

/// Events with one summary each, ready for event_record(). `tag` is what TensorBoard shows.
std::string scalar_event(EventTime time, std::string_view tag, double value);
std::string text_event(EventTime time, std::string_view tag, std::string_view text);
/// `png` is a whole PNG file.
std::string image_event(EventTime time, std::string_view tag, int64_t height, int64_t width, int64_t channels,
                        std::string_view png);
std::string histogram_event(EventTime time, std::string_view tag, std::span<const float> values);

/// For the HPARAMS tab: the run's hyperparameters, which TensorBoard finds together with all scalars of the
/// same folder.
std::string session_start_event(double wall_time, std::string_view group, const TrackedValues& hparams);
/// `success` false: the session is shown as failed.
std::string session_end_event(double wall_time, bool success);

/// The buckets of a histogram: `counts[i]` values lie below `limits[i]` and not below the limit before it.
struct HistogramBuckets {
  double min = 0;
  double max = 0;
  double count = 0;
  double sum = 0;
  double sum_squares = 0;
  std::vector<double> limits;
  std::vector<double> counts;
};

/// TensorFlow's buckets: limits grow by 1.1 from 1e-12 to 1e20, and the same below zero; empty ones at both
/// ends are left out. Values that are not finite are not counted.
HistogramBuckets histogram_buckets(std::span<const float> values);

}  // namespace accelerate
