#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>

namespace accelerate {

/// True if `error` is how torch says that a device or the machine has no memory left.
bool is_out_of_memory(const std::exception& error);

/// Gives memory that torch keeps for reuse back to the accelerator; nothing on the CPU.
void empty_device_cache();

/// Throws the ConfigError of find_executable_batch_size(). Call inside a catch block: the cause is nested in
/// it.
[[noreturn]] void throw_no_executable_batch_size(int64_t starting_batch_size);

/// Calls `train(batch_size)`, beginning with `starting_batch_size`, and again with nine tenths of it as long
/// as it runs out of memory, as HF Accelerate's decorator. Returns what `train` returns. `train` must begin
/// from nothing each time: Accelerator::free_memory(), then models, optimizers and loaders anew. Ranks search
/// by themselves; let them agree inside `train` where one may run out before another.
/// @throws ConfigError when no batch size is left; whatever else `train` throws.
template <class Train>
auto find_executable_batch_size(Train&& train, int64_t starting_batch_size = 128) {
  for (int64_t batch_size = starting_batch_size;;) {
    try {
      return train(batch_size);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      empty_device_cache();
      batch_size = batch_size * 9 / 10;
      if (batch_size == 0) throw_no_executable_batch_size(starting_batch_size);
    }
  }
}

}  // namespace accelerate
