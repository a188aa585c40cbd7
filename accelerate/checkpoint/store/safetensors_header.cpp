#include "accelerate/checkpoint/store/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr int kMaxDepth = 4;                       // a tensor's shape is the deepest there is
constexpr const char* kMetadata = "__metadata__";

struct Dtype {
  std::string_view name;
  uint64_t bits;
};
// In the order of the library (safetensors 0.8).
constexpr std::array<Dtype, 22> kDtypes = {
    {{"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
     {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
     {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
     {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64}}};

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw CheckpointError({.what = concat(path, " is no complete safetensors file: ", what),
                         .hint = "It may have been cut off while it was copied; take another copy."});
}

struct HeaderText {
  std::string text;
  uint64_t data_begin = 0;  // 0: the file is nothing but the text
};

HeaderText header_text(FileSystem& files, const std::string& path, uint64_t file_bytes, bool may_be_alone) {
  const std::unique_ptr<ReadableFile> file = files.open(path);
  std::array<std::byte, 8> start{};
  if (file->read(start) != start.size()) damaged(path, concat("only ", file_bytes, " bytes"));
  uint64_t header_bytes = 0;
  for (size_t i = 0; i < 8; ++i) header_bytes |= static_cast<uint64_t>(start[i]) << (8 * i);
  HeaderText out{.text = {}, .data_begin = 8 + header_bytes};
  if (header_bytes > kMaxHeaderBytes) {
    if (!may_be_alone || start[0] != std::byte{'{'} || file_bytes > kMaxHeaderBytes) {
      damaged(path, "no such file begins like this");
    }
    file->seek(0);
    header_bytes = file_bytes;
    out.data_begin = 0;
  } else if (header_bytes > file_bytes - 8) {
    damaged(path,
            concat("cut off: its header has ", header_bytes, " bytes, and ", file_bytes - 8, " are there"));
  }
  out.text.resize(header_bytes);
  if (file->read(std::as_writable_bytes(std::span(out.text.data(), out.text.size()))) != out.text.size()) {
    damaged(path, "it can't be read to its end");
  }
  return out;
}

// Later ones of equal names would replace earlier ones unseen.
Json parse_header(const std::string& text, const std::string& path) {
  std::set<std::string> names;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDepth) damaged(path, "its header is nested too deeply");
    if (depth == 1 && event == Json::parse_event_t::key && !names.insert(value.get<std::string>()).second) {
      damaged(path, concat("tensor '", value.get<std::string>(), "' is there twice"));
    }
    return true;
  };
  try {
    Json out = Json::parse(text, check);
    if (!out.is_object()) damaged(path, "its header is no object");
    return out;
  } catch (const nlohmann::json::exception& error) {
    damaged(path, concat("the header can't be read (", error.what(), ")"));
  }
}

std::map<std::string, std::string> read_metadata(const Json& entry, const std::string& path) {
  std::map<std::string, std::string> out;
  if (!entry.is_object()) damaged(path, "its metadata is no object");
  for (const auto& [name, value] : entry.items()) {
    if (!value.is_string()) damaged(path, concat("metadata '", name, "' is no text"));
    out[name] = value.get<std::string>();
  }
  return out;
}

SafetensorsEntry read_entry(const std::string& name, const Json& entry, const std::string& path) {
  const auto bad = [&](const std::string& what) { damaged(path, concat("tensor '", name, "' ", what)); };
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2) {
    bad("lacks dtype, shape or data_offsets");
  }
  SafetensorsEntry out{.name = name, .dtype = entry["dtype"].get<std::string>(), .shape = {}};
  const auto bits = safetensors_dtype_bits(out.dtype);
  if (!bits) bad(concat("has the unknown dtype ", out.dtype));
  uint64_t total_bits = *bits;
  for (const Json& size : entry["shape"]) {
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX)
      bad("has a size that is not possible");
    out.shape.push_back(size.get<int64_t>());
    if (__builtin_mul_overflow(total_bits, size.get<uint64_t>(), &total_bits))
      bad("has a shape that is not possible");
  }
  const Json& offsets = entry["data_offsets"];
  if (!offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    bad("has offsets that are no numbers");
  }
  out.begin = offsets[0].get<uint64_t>();
  out.end = offsets[1].get<uint64_t>();
  if (out.begin > out.end) bad("ends before it begins");
  if (total_bits % 8 != 0 || out.num_bytes() != total_bits / 8) {
    bad("has another number of bytes than its shape and dtype make");
  }
  return out;
}

void check_overlaps(const std::vector<SafetensorsEntry>& tensors, const std::string& path) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.num_bytes() > 0) sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return a->begin != b->begin ? a->begin < b->begin : a->end < b->end;
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const bool is_same = sorted[i]->begin == sorted[i - 1]->begin && sorted[i]->end == sorted[i - 1]->end;
    if (!is_same && sorted[i]->begin < sorted[i - 1]->end) {
      damaged(path, concat("tensors '", sorted[i - 1]->name, "' and '", sorted[i]->name, "' overlap"));
    }
  }
}

SafetensorsHeader read_header(FileSystem& files, const std::string& path, bool may_be_alone) {
  const std::optional<FileInfo> info = files.info(path);
  if (info && info->kind != FileKind::kFile) damaged(path, "it is no regular file");
  const uint64_t file_bytes = info ? info->size_bytes : 0;  // open() says that it is not there
  const HeaderText header = header_text(files, path, file_bytes, may_be_alone);
  const Json json = parse_header(header.text, path);
  SafetensorsHeader out{.metadata = {}, .tensors = {}, .data_begin = header.data_begin};
  for (const auto& [name, entry] : json.items()) {
    if (name == kMetadata) {
      out.metadata = read_metadata(entry, path);
      continue;
    }
    out.tensors.push_back(read_entry(name, entry, path));
    if (!may_be_alone && out.tensors.back().end > file_bytes - out.data_begin) {
      damaged(path, concat("the data of '", name, "' lies past the end: the file has ", file_bytes,
                           " bytes and needs ", out.data_begin + out.tensors.back().end));
    }
  }
  check_overlaps(out.tensors, path);
  return out;
}

}  // namespace

uint64_t SafetensorsEntry::numel() const {
  uint64_t out = 1;
  for (const int64_t size : shape) out *= static_cast<uint64_t>(size);
  return out;
}

uint64_t SafetensorsHeader::data_bytes() const {
  uint64_t out = 0;
  for (const SafetensorsEntry& entry : tensors) out = std::max(out, entry.end);
  return out;
}

std::optional<uint64_t> safetensors_dtype_bits(std::string_view dtype) {
  for (const Dtype& known : kDtypes) {
    if (dtype == known.name) return known.bits;
  }
  return std::nullopt;
}

bool is_floating_safetensors_dtype(std::string_view dtype) {
  return dtype.starts_with("F") || dtype.starts_with("BF");
}

int safetensors_dtype_order(std::string_view dtype) {
  int order = 0;
  for (const Dtype& known : kDtypes) {
    if (dtype == known.name) return order;
    ++order;
  }
  return order;
}

SafetensorsHeader read_safetensors_header(FileSystem& files, const std::string& path) {
  return read_header(files, path, /*may_be_alone=*/false);
}

SafetensorsHeader read_safetensors_header_alone(FileSystem& files, const std::string& path) {
  return read_header(files, path, /*may_be_alone=*/true);
}

std::string write_safetensors_header(const std::vector<SafetensorsEntry>& tensors,
                                     const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  for (const SafetensorsEntry& entry : tensors) {
    // ordered_json looks through all members for each new one; names are known to differ.
    header.get_ref<Json::object_t&>().emplace_back(
        entry.name,
        Json{{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}});
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>((text.size() >> (8 * i)) & 0xFF);
  return out + text;
}

}  // namespace accelerate
