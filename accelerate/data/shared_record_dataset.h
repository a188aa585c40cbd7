#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/comm/serializer.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/shared_memory_dataset.h"

namespace accelerate {

/// A data set of records of your own type, held once per machine as bytes; a record is made anew each time it
/// is read. A batch is a vector of records; for transforms and tensors as batches, use it as the source of an
/// ItemDataset. Cheap to copy; reading is thread-safe.
template <Serializable Record>
class SharedRecordDataset {
 public:
  using BatchType = std::vector<Record>;

  /// Collective over the ranks of each machine, as SharedMemoryDataset::create(). `load` runs on the local
  /// main process only and returns any range of records.
  /// @throws what SharedMemoryDataset::create() throws.
  template <class Load>
  static SharedRecordDataset create(const ProcessContext& context, Load&& load,
                                    const SharedMemoryDatasetOptions& options = {}) {
    return SharedRecordDataset(SharedMemoryDataset::create(
        context,
        [&] {
          std::vector<std::string> rows;
          for (const Record& record : load()) {
            ByteWriter writer;
            save_value<Record>(writer, record);
            rows.push_back(writer.take());
          }
          return Ragged::from_strings(rows);
        },
        options));
  }

  /// Records.
  int64_t size() const { return bytes_.size(); }
  /// Bytes that all records take.
  int64_t size_bytes() const { return bytes_.size_bytes(); }

  /// Record `index`.
  /// @throws DataError for an index that is not there.
  Record get(size_t index) const {
    const at::Tensor row = bytes_.ragged("data").row(static_cast<int64_t>(index));
    ByteReader reader({static_cast<const std::byte*>(row.const_data_ptr()), row.nbytes()});
    Record record = load_value<Record>(reader);
    if (reader.left() > 0) {
      throw DataError({.what = concat("record ", index),
                       .expected = "all bytes to be read",
                       .got = concat(reader.left(), " left"),
                       .hint = "Its save() and load() do not match."});
    }
    return record;
  }

  std::vector<Record> get_batch(std::span<const int64_t> indices) const {
    std::vector<Record> out;
    out.reserve(indices.size());
    for (const int64_t index : indices) out.push_back(get(static_cast<size_t>(index)));
    return out;
  }

 private:
  explicit SharedRecordDataset(SharedMemoryDataset bytes) : bytes_(std::move(bytes)) {}

  SharedMemoryDataset bytes_;
};

}  // namespace accelerate
