#include "launcher/event_reader.h"

#include <cstring>
#include <protozero/pbf_reader.hpp>

#include "accelerate/core/strings.h"
#include "accelerate/tracking/trackers/event_file.h"

namespace accelerate::cli {
namespace {

using protozero::pbf_reader;

uint64_t little_endian(std::string_view bytes) {
  uint64_t out = 0;
  for (size_t i = bytes.size(); i-- > 0;) out = out << 8 | static_cast<unsigned char>(bytes[i]);
  return out;
}

// A TensorProto of one number; false for any other.
bool read_tensor(pbf_reader tensor, double& value) {
  uint64_t type = 0;
  std::string content;
  bool found = false;
  while (tensor.next()) {
    switch (tensor.tag()) {
      case 1:
        type = static_cast<uint64_t>(tensor.get_enum());
        break;
      case 4:
        content = tensor.get_bytes();
        break;
      case 5:
        for (const float number : tensor.get_packed_float()) {
          value = number;
          found = true;
        }
        break;
      case 6:
        for (const double number : tensor.get_packed_double()) {
          value = number;
          found = true;
        }
        break;
      default:
        tensor.skip();
    }
  }
  if (found) return true;
  if (type == 1 && content.size() == sizeof(float)) {
    float number = 0;
    std::memcpy(&number, content.data(), sizeof number);
    value = number;
    return true;
  }
  if (type == 2 && content.size() == sizeof(double)) {
    std::memcpy(&value, content.data(), sizeof value);
    return true;
  }
  return false;
}

bool read_value(pbf_reader reader, ScalarEvent& out) {
  bool found = false;
  while (reader.next()) {
    if (reader.tag() == 1) {
      out.tag = reader.get_string();
    } else if (reader.tag() == 2) {
      out.value = reader.get_float();
      found = true;
    } else if (reader.tag() == 8) {
      found |= read_tensor(reader.get_message(), out.value);
    } else {
      reader.skip();
    }
  }
  return found;
}

void read_event(std::string_view data, std::vector<ScalarEvent>& out) {
  pbf_reader event(data.data(), data.size());
  ScalarEvent shared;
  std::vector<ScalarEvent> values;
  while (event.next()) {
    if (event.tag() == 1) {
      shared.wall_time = event.get_double();
    } else if (event.tag() == 2) {
      shared.step = event.get_int64();
    } else if (event.tag() == 5) {
      pbf_reader summary = event.get_message();
      while (summary.next(1)) {
        ScalarEvent value;
        if (read_value(summary.get_message(), value)) values.push_back(std::move(value));
      }
    } else {
      event.skip();
    }
  }
  for (ScalarEvent& value : values) {
    value.wall_time = shared.wall_time;
    value.step = shared.step;
    out.push_back(std::move(value));
  }
}

}  // namespace

std::vector<ScalarEvent> read_scalar_events(std::string_view file, std::string& problem) {
  constexpr size_t kHead = 12;
  constexpr size_t kTail = 4;
  std::vector<ScalarEvent> out;
  problem.clear();
  for (uint64_t number = 0; file.size() >= kHead; ++number) {
    const uint64_t length = little_endian(file.substr(0, 8));
    if (little_endian(file.substr(8, 4)) != masked_crc32c(file.substr(0, 8))) {
      problem = concat("record ", number, " has a wrong checksum");
      break;
    }
    if (length > file.size() - kHead || file.size() - kHead - length < kTail) break;
    const std::string_view data = file.substr(kHead, length);
    try {
      if (little_endian(file.substr(kHead + length, kTail)) != masked_crc32c(data)) {
        throw std::runtime_error("checksum");
      }
      read_event(data, out);
    } catch (const std::exception&) {
      problem = concat("record ", number, " is damaged");
      break;
    }
    file.remove_prefix(kHead + length + kTail);
  }
  return out;
}

}  // namespace accelerate::cli
