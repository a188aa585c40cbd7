#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <string>

#include "accelerate/data/tensor_dict.h"

namespace accelerate {

/// An optimizer in two parts that are written to two files.
///
/// The JSON holds the type, the options and parameter names of every group, and what of a parameter's state
/// is no tensor:
///   {"format_version": 1, "type": "AdamW",
///    "param_groups": [{"options": {"lr": 0.001, "betas": [0.9, 0.999], ...}, "params": ["0.weight", ...]}],
///    "state": {"0.weight": {"step": 12, "exp_avg": {"tensor": "0.weight.exp_avg"}, ...}}}
/// Tensors are called "<parameter>.<field>". Everything goes by parameters' names, never by their position,
/// so that it can be read under another strategy or number of ranks. Numbers come back exactly. How other
/// values look is said in Note [Archives as JSON].
struct OptimizerState {
  std::string json;
  /// The optimizer's own (detached), not copies: the next step changes them.
  TensorDict tensors;
};

/// The user's dotted name of a parameter, or "" for one that is not known.
using ParameterName = std::function<std::string(const at::Tensor&)>;

/// The tensor of a name on the CPU, or an undefined one where there is none. It is copied before the next
/// call, so it may be a view of a file's mapping.
using ReadTensor = std::function<at::Tensor(const std::string& name)>;

/// Local. What an optimizer needs to go on: its options and state, not the parameters. Any optimizer whose
/// options and state have LibTorch's serialize(), a user's own too.
/// @throws CheckpointError for a parameter without a name (it says the position), state that belongs to no
/// parameter, and values that have no form in the file.
OptimizerState capture_optimizer(const torch::optim::Optimizer& optimizer, const ParameterName& name_of);

/// Local. Makes an optimizer go on from a state that capture_optimizer() gave. Options (the learning rate
/// too) become the file's, in place; state tensors are copies on the device of their parameter, with the
/// file's dtype; parameters for which the file has no state lose theirs. The parameters themselves, and the
/// optimizer's defaults, stay. A user's own optimizer needs LibTorch's load() if it has state.
///
/// All is read and checked first: after an error the optimizer is what it was. It therefore holds its old
/// state until the new one is complete; an optimizer that has made no step yet has (but Adagrad) none.
///
/// `path` is only for messages.
/// @throws CheckpointError when the file was written by another type or for other parameters or groups, lacks
/// a tensor, has one of another shape, is damaged or of a newer format.
void restore_optimizer(torch::optim::Optimizer& optimizer, const ParameterName& name_of,
                       const std::string& json, const ReadTensor& read, const std::string& path);

}  // namespace accelerate
