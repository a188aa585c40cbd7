#pragma once

#include <string>

#include "accelerate/data/tensor_dict.h"

namespace accelerate {

/// Tensors from a file that torch wrote, on the CPU:
///   - Python's torch.save() of a dict of tensors, such as module.state_dict();
///   - torch::save(module, path) of C++, under the names of named_parameters() and named_buffers(); a tensor
///   or
///     a vector of them has the names "0", "1", ... there.
/// Where the dict lies within another one ({"model": {...}, "epoch": 3}), `key` ("model") says where, with
/// dots for deeper ones ("ema.model"). Parameters come as plain tensors; tensors that share memory in the
/// file share it here. As with load_safetensors(), pages are read when they are used and writing to a tensor
/// changes this process's copy only; a file whose entries are compressed is read at once.
///
/// No code is ever run: classes that the file names are skipped, and are an error only within the dict that
/// is asked for. See Note [Pickles]. For weights of our own use safetensors.
/// @throws CheckpointError naming the path and what is wrong: not there, damaged, no dict of tensors (it
/// lists the keys), a whole module or TorchScript, torch.export's format, the format before torch 1.6,
/// tensors that are sparse, quantized or without data. It says how to convert the file where Python can.
TensorDict load_torch_file(const std::string& path, const std::string& key = "");

}  // namespace accelerate
