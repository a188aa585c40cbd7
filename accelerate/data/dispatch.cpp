#include "accelerate/data/dispatch.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "accelerate/comm/bytes_tensor.h"
#include "accelerate/core/error.h"
#include "accelerate/core/read_only_memory.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

constexpr int64_t kFailed = -1;  // in place of batches_left: the parcels are the error's text

constexpr int64_t kNumbers = 3;  // of a header, before the parcels' sizes

}  // namespace

void scatter_parcels(Communicator& communicator, const std::vector<std::string>& parcels,
                     const DispatchHeader& header) {
  // Gloo and NCCL scatter equal sizes; a short parcel is filled up to the longest.
  std::vector<int64_t> numbers = {header.batches_left, header.remainder, header.epoch};
  int64_t longest = 0;
  for (size_t rank = 0; rank < parcels.size(); ++rank) {
    const auto size = static_cast<int64_t>(parcels[rank].size());
    numbers.push_back(size);
    longest = std::max(longest, size);
  }
  at::Tensor announced = at::tensor(numbers, at::TensorOptions(at::kLong));
  communicator.broadcast(announced, 0);
  if (longest == 0) return;
  std::vector<at::Tensor> inputs;
  for (const std::string& parcel : parcels) inputs.push_back(bytes_tensor(parcel, longest));
  communicator.scatter(inputs[0], inputs, 0);
}

void announce_failure(Communicator& communicator, const std::string& text) {
  scatter_parcels(communicator, std::vector<std::string>(static_cast<size_t>(communicator.size()), text),
                  {.batches_left = kFailed, .remainder = 0, .epoch = 0});
}

at::Tensor receive_parcel(Communicator& communicator, DispatchHeader* header) {
  at::Tensor announced = at::zeros({kNumbers + communicator.size()}, at::TensorOptions(at::kLong));
  communicator.broadcast(announced, 0);
  const int64_t* numbers = announced.const_data_ptr<int64_t>();
  *header = {.batches_left = numbers[0], .remainder = numbers[1], .epoch = numbers[2]};
  const int64_t longest = *std::max_element(numbers + kNumbers, numbers + kNumbers + communicator.size());
  at::Tensor parcel = at::empty({longest}, at::TensorOptions(at::kByte));
  if (longest > 0) communicator.scatter(parcel, {}, 0);
  parcel = parcel.narrow(0, 0, numbers[kNumbers + communicator.rank()]);
  if (header->batches_left == kFailed) {
    throw DataError({.what = concat("the main process, which reads for all ranks, could not make a batch: ",
                                    text_of_bytes(parcel)),
                     .rank = communicator.rank(),
                     .echo = true});
  }
  return parcel;
}

void check_same_epoch(const DispatchHeader& header, int64_t epoch, int rank) {
  if (header.epoch == epoch) return;
  throw DataError(
      {.what = "batches dealt out by the main process",
       .expected = concat("epoch ", epoch, ", in which this rank's loop is"),
       .got = concat("epoch ", header.epoch),
       .hint = "All ranks must leave a loop over such a loader in the same step; see set_trigger().",
       .rank = rank});
}

void throw_not_serializable() {
  throw DataError({.what = "dispatch_batches",
                   .expected = "batches that can be written as bytes",
                   .got = "a type without a serializer",
                   .hint = "Give the type a serialize() member (see accelerate/comm/serializer.h), or set "
                           "dispatch_batches = false."});
}

bool is_read_only(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.numel() > 0 && ReadOnlyMemory::contains(tensor.const_data_ptr());
}

}  // namespace accelerate::detail
