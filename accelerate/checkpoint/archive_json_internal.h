#pragma once

#include <torch/serialize/archive.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "accelerate/data/tensor_dict.h"

// Note [Archives as JSON]
// LibTorch's options and states of optimizers are written to archives by their own serialize(), a user's too.
// An archive in memory is a module whose attributes are the values; they are read from it and put into it
// without writing any bytes, so tensors are never copied. In JSON a value is
//   None, bool, int, float, string: the same in JSON; a float always has a point or an exponent
//   inf, nan: {"float": "inf"}, "-inf", "nan", which JSON's numbers lack
//   tuple: an array
//   list: {"list": "int", "values": [...]}, the type of its elements being int, float, bool, str or tensor
//   tensor: {"tensor": its name}, null for one that is undefined; the data is kept elsewhere
//   archive within an archive: {"archive": {...}}
namespace accelerate::detail {

using Json = nlohmann::ordered_json;

/// What was written to an archive, as an object. The tensors (not copied) are added to `tensors` under
/// "<name>.<key>"; in a list, "<name>.<key>.<position>".
/// @throws CheckpointError naming what has no such form, or a name of a tensor that is taken.
Json archive_to_json(const torch::serialize::OutputArchive& archive, const std::string& name,
                     TensorDict& tensors);

/// Writes the values of an object to an archive. `tensor_of` gives the tensor of a name.
/// @throws std::invalid_argument or nlohmann::json::exception for what archive_to_json() does not write.
void json_to_archive(const Json& json, torch::serialize::OutputArchive& archive,
                     const std::function<at::Tensor(const std::string&)>& tensor_of);

/// Reads what was written to `archive`, tensors being the same ones.
torch::serialize::InputArchive read_back(const torch::serialize::OutputArchive& archive);

}  // namespace accelerate::detail
