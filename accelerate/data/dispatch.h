#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/comm/communicator.h"

// How the main process sends batches to the other ranks. One exchange of sizes and one scatter a batch.
namespace accelerate::detail {

/// What the main process says about a batch beside its bytes; see LoaderProgress. No batches left: the end.
struct DispatchHeader {
  int64_t batches_left = 0;
  int64_t remainder = 0;
  int64_t epoch = 0;
};

/// Collective, on the main process: rank r gets parcels[r]; that of rank 0 stays here.
void scatter_parcels(Communicator& communicator, const std::vector<std::string>& parcels,
                     const DispatchHeader& header);

/// Collective, on the main process: lets the others throw a DataError with this text.
void announce_failure(Communicator& communicator, const std::string& text);

/// Collective, on the other ranks. Returns this rank's parcel, [bytes], uint8.
/// @throws DataError when the main process could not make the batch.
at::Tensor receive_parcel(Communicator& communicator, DispatchHeader* header);

/// @throws DataError when the main process is in another epoch: some rank left its loop before the others.
void check_same_epoch(const DispatchHeader& header, int64_t epoch, int rank);

[[noreturn]] void throw_not_serializable();

/// True for memory that ReadOnlyMemory knows.
bool is_read_only(const at::Tensor& tensor);

}  // namespace accelerate::detail
