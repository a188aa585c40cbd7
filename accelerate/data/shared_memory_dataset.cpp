#include "accelerate/data/shared_memory_dataset.h"

#include <ATen/Functions.h>

#include <cstring>
#include <set>

#include "accelerate/core/deadline.h"
#include "accelerate/core/error.h"
#include "accelerate/core/file_mapping.h"
#include "accelerate/core/read_only_memory.h"
#include "accelerate/core/shared_memory.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/tensor_segment.h"

namespace accelerate {

struct SharedMemoryDataset::Contents {
  ColumnDict columns;
  int64_t size = 0;
  std::set<std::string> read_only;  // columns of which a batch may be a view

  explicit Contents(ColumnDict all) : columns(std::move(all)), size(column_size(columns.begin()->second)) {
    for (const auto& [name, column] : columns) {
      const auto* tensor = std::get_if<at::Tensor>(&column);
      if (tensor != nullptr && ReadOnlyMemory::contains(tensor->const_data_ptr())) read_only.insert(name);
    }
  }
};

namespace {

// Note [Building a shared data set]
// Keys in the store, per machine and data set: `ready` counts the waiting ranks, so that the segment gets its
// name only when all are about to open it; `result` is the layout, or "!" and the builder's error; `attached`
// counts those that have opened it, after which the name goes.
struct Keys {
  std::string ready, all_ready, result, attached, all_attached;

  Keys(const Topology& topology, int64_t number) {
    const std::string base = concat("accelerate/data/", topology.node_rank, "/", number, "/");
    ready = base + "ready";
    all_ready = base + "all_ready";
    result = base + "result";
    attached = base + "attached";
    all_attached = base + "all_attached";
  }
};

void count_up(Store& store, const std::string& counter, const std::string& done, int64_t target) {
  if (store.add(counter, 1) == target) store.set(done, "1");
}

[[noreturn]] void missing(const ProcessContext& context, const std::string& what) {
  throw CommError({.what = concat("building the shared data set: ", what, " within ",
                                  context.communicator->timeout().count() / 1000, " s"),
                   .hint = "All ranks must create their data sets in the same order.",
                   .rank = context.topology.rank});
}

ColumnDict build_segment(const ProcessContext& context, const Keys& keys,
                         const std::function<ColumnDict()>& load, const SharedMemoryDatasetOptions& options) {
  Store& store = *context.communicator->store();
  const int64_t peers = context.topology.local_world_size - 1;
  sweep_shared_memory({}, options.directory);
  std::unique_ptr<SharedMemorySegment> segment;
  detail::SegmentLayout layout;
  auto mapping = std::make_shared<SharedMemoryMapping>();
  try {
    ColumnDict columns = load();
    layout = detail::plan_layout(columns);
    segment = std::make_unique<SharedMemorySegment>(
        context.topology.job_id, std::max<size_t>(layout.size_bytes, 1),
        SharedMemoryOptions{.directory = options.directory,
                            .fallback_directory = options.fallback_directory});
    if (segment->in_fallback()) {
      context.logger->info(concat(options.directory, " has no room for ", format_bytes(layout.size_bytes),
                                  "; the data set is held in ", options.fallback_directory));
    }
    *mapping = segment->map_writable();
    detail::fill_segment(std::move(columns), layout, *mapping);
    mapping->make_read_only();
    if (!store.get(keys.all_ready, context.communicator->timeout()))
      missing(context, "local ranks did not come");
    store.set(keys.result, detail::encode_layout(layout, segment->publish()));
  } catch (const std::exception& error) {
    store.set(keys.result, concat("!", error_message(error)));
    throw;
  } catch (...) {
    store.set(keys.result, "!something that is no std::exception was thrown");
    throw;
  }
  if (peers > 0 && !store.get(keys.all_attached, context.communicator->timeout())) {
    missing(context, "local ranks did not attach");
  }
  segment->withdraw();
  return detail::view_segment(layout, std::move(mapping));
}

ColumnDict attach_segment(const ProcessContext& context, const Keys& keys) {
  Store& store = *context.communicator->store();
  const int64_t peers = context.topology.local_world_size - 1;
  count_up(store, keys.ready, keys.all_ready, peers);
  const auto result = store.get(keys.result, context.communicator->timeout());
  if (!result) missing(context, "the local main process did not finish");
  if (result->starts_with('!')) {
    throw DataError(
        {.what = concat("the data set could not be built by the local main process: ", result->substr(1)),
         .rank = context.topology.rank,
         .echo = true});
  }
  std::string path;
  const detail::SegmentLayout layout = detail::decode_layout(*result, &path);
  auto mapping = std::make_shared<SharedMemoryMapping>(
      attach_shared_memory(path, std::max<size_t>(layout.size_bytes, 1)));
  count_up(store, keys.attached, keys.all_attached, peers);
  return detail::view_segment(layout, std::move(mapping));
}

// One rank on this machine: memory of its own is the one copy, read-only as for several.
ColumnDict build_alone(const std::function<ColumnDict()>& load) {
  ColumnDict columns = load();
  const detail::SegmentLayout layout = detail::plan_layout(columns);
  auto mapping = std::make_shared<SharedMemoryMapping>(
      SharedMemoryMapping::anonymous(std::max<size_t>(layout.size_bytes, 1)));
  detail::fill_segment(std::move(columns), layout, *mapping);
  mapping->make_read_only();
  return detail::view_segment(layout, std::move(mapping));
}

void put(Batch& batch, const std::string& name, at::Tensor part) {
  if (name == "data") {
    batch.data = std::move(part);
  } else if (name == "target") {
    batch.target = std::move(part);
  } else {
    batch.others[name] = std::move(part);
  }
}

// at::index_select() for rows of contiguous tensors, which fetches the rows to come ahead of their copy: rows
// of a shuffled batch lie anywhere, and the processor can't guess where.
at::Tensor gather_rows(const at::Tensor& tensor, std::span<const int64_t> rows) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = static_cast<int64_t>(rows.size());
  at::Tensor out = at::empty(sizes, tensor.options());
  if (out.numel() == 0) return out;
  constexpr size_t kLine = 64;
  constexpr size_t kLines = 8;
  constexpr size_t kAhead = 2;
  const size_t width = out.nbytes() / rows.size();
  const auto* from = static_cast<const char*>(tensor.const_data_ptr());
  auto* to = static_cast<char*>(out.mutable_data_ptr());
  for (size_t i = 0; i < rows.size(); ++i, to += width) {
    if (i + kAhead < rows.size()) {
      const char* coming = from + static_cast<size_t>(rows[i + kAhead]) * width;
      for (size_t byte = 0; byte < std::min(width, kLine * kLines); byte += kLine)
        __builtin_prefetch(coming + byte);
    }
    std::memcpy(to, from + static_cast<size_t>(rows[i]) * width, width);
  }
  return out;
}

at::Tensor gather(const at::Tensor& tensor, std::span<const int64_t> rows) {
  if (tensor.is_contiguous()) return gather_rows(tensor, rows);
  const auto count = static_cast<int64_t>(rows.size());
  return at::index_select(
      tensor, 0, at::from_blob(const_cast<int64_t*>(rows.data()), {count}, at::TensorOptions(at::kLong)));
}

bool side_by_side(std::span<const int64_t> indices) {
  for (size_t i = 1; i < indices.size(); ++i) {
    if (indices[i] != indices[0] + static_cast<int64_t>(i)) return false;
  }
  return !indices.empty();
}

}  // namespace

SharedMemoryDataset SharedMemoryDataset::build(const ProcessContext& context,
                                               const std::function<ColumnDict()>& load,
                                               const SharedMemoryDatasetOptions& options) {
  const int64_t number = (*context.next_dataset)++;
  const auto columns = [&] {
    if (context.topology.local_world_size == 1) return build_alone(load);
    const Keys keys(context.topology, number);
    return context.topology.local_rank == 0 ? build_segment(context, keys, load, options)
                                            : attach_segment(context, keys);
  };
  return SharedMemoryDataset(std::make_shared<const Contents>(columns()));
}

SharedMemoryDataset SharedMemoryDataset::from_columns(ColumnDict columns) {
  detail::plan_layout(columns);
  const auto settle = [](at::Tensor& tensor) {
    // Rows are copied as bytes: what is only marked as negated or conjugated must be so in memory.
    tensor = tensor.detach().resolve_conj().resolve_neg();
    if (!tensor.is_cpu()) {
      throw DataError({.what = "a mapped data set",
                       .expected = "tensors on the CPU",
                       .got = concat("one on ", tensor.device().str()),
                       .hint = "Use tensor.cpu(); the loader moves batches to the device."});
    }
    if (tensor.is_cpu() && tensor.numel() > 0) FileMapping::protect(tensor.const_data_ptr());
  };
  for (auto& [name, column] : columns) {
    if (auto* ragged = std::get_if<Ragged>(&column)) {
      settle(ragged->values);
      ragged->values = ragged->values.contiguous();
      settle(ragged->offsets);
      ragged->offsets = ragged->offsets.contiguous();
    } else {
      settle(std::get<at::Tensor>(column));
    }
  }
  return SharedMemoryDataset(std::make_shared<const Contents>(std::move(columns)));
}

int64_t SharedMemoryDataset::size() const {
  return contents_->size;
}

int64_t SharedMemoryDataset::size_bytes() const {
  size_t total = 0;
  for (const auto& [name, column] : contents_->columns) {
    const auto* ragged = std::get_if<Ragged>(&column);
    total += ragged == nullptr ? std::get<at::Tensor>(column).nbytes()
                               : ragged->values.nbytes() + ragged->offsets.nbytes();
  }
  return static_cast<int64_t>(total);
}

std::vector<std::string> SharedMemoryDataset::names() const {
  std::vector<std::string> out;
  for (const auto& [name, column] : contents_->columns) out.push_back(name);
  return out;
}

const Column& SharedMemoryDataset::column(const std::string& name) const {
  const auto found = contents_->columns.find(name);
  if (found != contents_->columns.end()) return found->second;
  const std::vector<std::string> known = names();
  const auto near = nearest_name(name, known);
  throw DataError({.what = concat("the data set has no tensor called '", name, "'"),
                   .expected = concat("one of ", join(known, ", ")),
                   .hint = near ? concat("Did you mean '", *near, "'?") : ""});
}

const at::Tensor& SharedMemoryDataset::tensor(const std::string& name) const {
  if (const auto* tensor = std::get_if<at::Tensor>(&column(name))) return *tensor;
  throw DataError({.what = concat("'", name, "' is ragged, not one tensor"), .hint = "Use ragged()."});
}

const Ragged& SharedMemoryDataset::ragged(const std::string& name) const {
  if (const auto* ragged = std::get_if<Ragged>(&column(name))) return *ragged;
  throw DataError({.what = concat("'", name, "' is one tensor, not ragged"), .hint = "Use tensor()."});
}

void SharedMemoryDataset::check_index(int64_t index) const {
  if (index >= 0 && index < contents_->size) return;
  throw DataError({.what = "sample number",
                   .expected = concat("0 to ", contents_->size - 1),
                   .got = std::to_string(index),
                   .hint = "Check the sampler."});
}

Batch SharedMemoryDataset::get_batch(std::span<const int64_t> indices) const {
  for (const int64_t index : indices) check_index(index);
  const auto count = static_cast<int64_t>(indices.size());
  const bool view = side_by_side(indices);
  Batch batch;
  for (const auto& [name, column] : contents_->columns) {
    if (const auto* ragged = std::get_if<Ragged>(&column)) {
      put(batch, name, ragged->padded(indices));
      batch.others[name + "_lengths"] = ragged->lengths(indices);
    } else if (const auto& tensor = std::get<at::Tensor>(column);
               view && contents_->read_only.contains(name)) {
      put(batch, name, tensor.narrow(0, indices[0], count));
    } else {
      put(batch, name, gather(tensor, indices));
    }
  }
  return batch;
}

Batch SharedMemoryDataset::get(size_t index) const {
  const auto row = static_cast<int64_t>(index);
  check_index(row);
  Batch sample;
  for (const auto& [name, column] : contents_->columns) {
    const auto* ragged = std::get_if<Ragged>(&column);
    put(sample, name, ragged == nullptr ? std::get<at::Tensor>(column).select(0, row) : ragged->row(row));
  }
  return sample;
}

}  // namespace accelerate
