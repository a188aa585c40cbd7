#include "accelerate/data/shared_memory_dataset.h"

#include <ATen/Functions.h>

#include "accelerate/core/deadline.h"
#include "accelerate/core/error.h"
#include "accelerate/core/shared_memory.h"
#include "accelerate/core/strings.h"
#include "accelerate/data/tensor_segment.h"

namespace accelerate {

struct SharedMemoryDataset::Contents {
  TensorDict tensors;
  int64_t size = 0;
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

TensorDict build_segment(const ProcessContext& context, const Keys& keys,
                         const std::function<TensorDict()>& load, const SharedMemoryDatasetOptions& options) {
  Store& store = *context.communicator->store();
  const int64_t peers = context.topology.local_world_size - 1;
  sweep_shared_memory({}, options.directory);
  std::unique_ptr<SharedMemorySegment> segment;
  detail::SegmentLayout layout;
  auto mapping = std::make_shared<SharedMemoryMapping>();
  try {
    TensorDict tensors = load();
    layout = detail::plan_layout(tensors);
    segment = std::make_unique<SharedMemorySegment>(
        context.topology.job_id, std::max<size_t>(layout.size_bytes, 1),
        SharedMemoryOptions{.directory = options.directory,
                            .fallback_directory = options.fallback_directory});
    if (segment->in_fallback()) {
      context.logger->info(concat(options.directory, " has no room for ", format_bytes(layout.size_bytes),
                                  "; the data set is held in ", options.fallback_directory));
    }
    *mapping = segment->map_writable();
    detail::fill_segment(tensors, layout, *mapping);
    tensors.clear();
    mapping->make_read_only();
    if (!store.get(keys.all_ready, context.communicator->timeout()))
      missing(context, "local ranks did not come");
    store.set(keys.result, detail::encode_layout(layout, segment->publish()));
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    store.set(keys.result, concat("!", error.what()));
    throw;
  }
  if (peers > 0 && !store.get(keys.all_attached, context.communicator->timeout())) {
    missing(context, "local ranks did not attach");
  }
  segment->withdraw();
  return detail::view_segment(layout, std::move(mapping));
}

TensorDict attach_segment(const ProcessContext& context, const Keys& keys) {
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

}  // namespace

SharedMemoryDataset SharedMemoryDataset::build(const ProcessContext& context,
                                               const std::function<TensorDict()>& load,
                                               const SharedMemoryDatasetOptions& options) {
  auto contents = std::make_shared<Contents>();
  const int64_t number = (*context.next_dataset)++;
  if (context.topology.local_world_size == 1) {
    // One rank on this machine: its own memory is the one copy.
    TensorDict tensors = load();
    detail::plan_layout(tensors);
    for (auto& [name, tensor] : tensors) contents->tensors[name] = tensor.detach().cpu().contiguous();
  } else if (const Keys keys(context.topology, number); context.topology.local_rank == 0) {
    contents->tensors = build_segment(context, keys, load, options);
  } else {
    contents->tensors = attach_segment(context, keys);
  }
  contents->size = contents->tensors.begin()->second.size(0);
  return SharedMemoryDataset(std::move(contents));
}

SharedMemoryDataset SharedMemoryDataset::from_tensors(TensorDict tensors) {
  detail::plan_layout(tensors);
  auto contents = std::make_shared<Contents>();
  for (auto& [name, tensor] : tensors) contents->tensors[name] = tensor.detach();
  contents->size = contents->tensors.begin()->second.size(0);
  return SharedMemoryDataset(std::move(contents));
}

int64_t SharedMemoryDataset::size() const {
  return contents_->size;
}

int64_t SharedMemoryDataset::size_bytes() const {
  int64_t total = 0;
  for (const auto& [name, tensor] : contents_->tensors) total += static_cast<int64_t>(tensor.nbytes());
  return total;
}

std::vector<std::string> SharedMemoryDataset::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : contents_->tensors) out.push_back(name);
  return out;
}

const at::Tensor& SharedMemoryDataset::tensor(const std::string& name) const {
  const auto found = contents_->tensors.find(name);
  if (found != contents_->tensors.end()) return found->second;
  const std::vector<std::string> known = names();
  const auto near = nearest_name(name, known);
  throw DataError({.what = concat("the data set has no tensor called '", name, "'"),
                   .expected = concat("one of ", join(known, ", ")),
                   .hint = near ? concat("Did you mean '", *near, "'?") : ""});
}

Batch SharedMemoryDataset::get_batch(std::span<const int64_t> indices) const {
  for (const int64_t index : indices) {
    if (index < 0 || index >= contents_->size) {
      throw DataError({.what = "sample number",
                       .expected = concat("0 to ", contents_->size - 1),
                       .got = std::to_string(index),
                       .hint = "Check the sampler."});
    }
  }
  const at::Tensor rows = at::from_blob(const_cast<int64_t*>(indices.data()),
                                        {static_cast<int64_t>(indices.size())}, at::TensorOptions(at::kLong));
  Batch batch;
  for (const auto& [name, tensor] : contents_->tensors) {
    at::Tensor part = at::index_select(tensor, 0, rows);
    if (name == "data") {
      batch.data = std::move(part);
    } else if (name == "target") {
      batch.target = std::move(part);
    } else {
      batch.others[name] = std::move(part);
    }
  }
  return batch;
}

}  // namespace accelerate
