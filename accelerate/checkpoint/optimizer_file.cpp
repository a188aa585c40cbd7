#include "accelerate/checkpoint/optimizer_file.h"

#include <ATen/Functions.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "accelerate/checkpoint/archive_json_internal.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using detail::Json;
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

constexpr int64_t kFormatVersion = 1;
constexpr size_t kNamesInMessage = 3;

// "AdamW"; a user's own type with its namespace.
std::string type_name(const Optimizer& optimizer) {
  const std::string name = c10::demangle(typeid(optimizer).name());
  constexpr std::string_view kLibTorch = "torch::optim::";
  return name.starts_with(kLibTorch) ? name.substr(kLibTorch.size()) : name;
}

// Types all of whose state tensors have the shape of their parameter.
bool has_parameter_shapes(const Optimizer& optimizer) {
  return dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr ||
         dynamic_cast<const torch::optim::RMSprop*>(&optimizer) != nullptr;
}

std::string quoted(const std::vector<std::string>& names) {
  std::vector<std::string> first;
  for (size_t i = 0; i < std::min(names.size(), kNamesInMessage); ++i) {
    first.push_back(concat("'", names[i], "'"));
  }
  std::string out = join(first, ", ");
  if (names.size() > first.size()) out += concat(" and ", names.size() - first.size(), " more");
  return out;
}

// An optimizer's parameters by their names.
struct NamedParameters {
  std::vector<std::vector<std::string>> groups;
  std::map<std::string, at::Tensor> tensors;
};

NamedParameters name_parameters(const Optimizer& optimizer, const ParameterName& name_of) {
  NamedParameters out;
  for (const auto& group : optimizer.param_groups()) {
    std::vector<std::string> names;
    for (const at::Tensor& parameter : group.params()) {
      const std::string place = concat("parameter ", names.size(), " of group ", out.groups.size(),
                                       " of the optimizer (shape ", parameter.sizes(), ")");
      std::string name = name_of(parameter);
      if (name.empty()) {
        throw CheckpointError({.what = concat(place, " has no name"),
                               .expected = "parameters of the model that the checkpoint is of",
                               .hint = "Give the optimizer model->parameters(), or register the tensor."});
      }
      if (!out.tensors.emplace(name, parameter).second) {
        throw CheckpointError({.what = concat(place, " is the second one called '", name, "'"),
                               .hint = "Give every parameter to the optimizer once."});
      }
      names.push_back(std::move(name));
    }
    out.groups.push_back(std::move(names));
  }
  return out;
}

// What an options or state object writes of itself.
template <class Part>
Json part_to_json(const Part& part, const std::string& name, TensorDict& tensors) {
  OutputArchive archive;
  try {
    part.serialize(archive);
  } catch (const c10::Error& error) {
    throw CheckpointError(
        {.what = concat(name, " of the optimizer can't be written: ", error.what_without_backtrace()),
         .hint = "Options and states of an optimizer of your own need serialize(), as LibTorch's have."});
  }
  return detail::archive_to_json(archive, name, tensors);
}

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw CheckpointError({.what = concat(path, " is no complete state of an optimizer: ", what),
                         .expected = "JSON as written by this library",
                         .hint = "Take another copy of the checkpoint, or an older one."});
}

// All that restore_optimizer() needs to know.
struct Restore {
  Optimizer& optimizer;
  NamedParameters parameters;
  const Json& file;
  const ReadTensor& read;
  const std::string& path;
};

void check_version_and_type(const Json& file, const Optimizer& optimizer, const std::string& path) {
  const auto version = file.at("format_version").get<int64_t>();
  if (version > kFormatVersion) {
    throw CheckpointError({.what = concat(path, " has a newer format"),
                           .expected = concat("format_version ", kFormatVersion, " at most"),
                           .got = concat(version),
                           .hint = "Read it with the version of accelerate that wrote it, or a later one."});
  }
  const auto type = file.at("type").get<std::string>();
  if (type != type_name(optimizer)) {
    throw CheckpointError(
        {.what =
             concat(path, " is for another optimizer: written by ", type, ", this is ", type_name(optimizer)),
         .expected = concat("the state of ", type_name(optimizer)),
         .got = concat("that of ", type),
         .hint = concat("Make the optimizer a ", type, ", or begin with a new one without loading.")});
  }
}

std::map<std::string, size_t> group_of_name(const Json& file, const std::string& path) {
  std::map<std::string, size_t> out;
  size_t index = 0;
  for (const Json& group : file.at("param_groups")) {
    for (const Json& name : group.at("params")) {
      if (!out.emplace(name.get<std::string>(), index).second) damaged(path, concat(name, " is there twice"));
    }
    ++index;
  }
  for (const auto& [name, state] : file.at("state").items()) {
    if (!out.contains(name)) damaged(path, concat("state of '", name, "', which is in no group"));
  }
  return out;
}

void check_names(const Restore& restore, const std::map<std::string, size_t>& in_file) {
  std::vector<std::string> missing, unexpected;
  for (const auto& [name, parameter] : restore.parameters.tensors) {
    if (!in_file.contains(name)) missing.push_back(name);
  }
  for (const auto& [name, group] : in_file) {
    if (!restore.parameters.tensors.contains(name)) unexpected.push_back(name);
  }
  if (missing.empty() && unexpected.empty()) return;
  std::string what = concat(restore.path, " was written for other parameters");
  if (!missing.empty()) what += concat("; it lacks ", quoted(missing));
  if (!unexpected.empty()) what += concat("; this optimizer lacks ", quoted(unexpected));
  throw CheckpointError(
      {.what = what,
       .expected = concat("this optimizer's ", restore.parameters.tensors.size(), " names"),
       .got = concat(in_file.size(), " names"),
       .hint = "Give the optimizer the same parameters of the same model as when it was saved."});
}

void check_groups(const Restore& restore) {
  const std::map<std::string, size_t> in_file = group_of_name(restore.file, restore.path);
  check_names(restore, in_file);
  const auto& groups = restore.parameters.groups;
  const Json& file_groups = restore.file.at("param_groups");
  const char* hint = "Make the parameter groups as they were when it was saved.";
  if (file_groups.size() != groups.size()) {
    throw CheckpointError({.what = concat(restore.path, " has another number of parameter groups"),
                           .expected = concat(groups.size()),
                           .got = concat(file_groups.size()),
                           .hint = hint});
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const std::string& name : groups[i]) {
      if (in_file.at(name) == i) continue;
      throw CheckpointError({.what = concat(restore.path, " has '", name, "' in another parameter group"),
                             .expected = concat("group ", i),
                             .got = concat("group ", in_file.at(name)),
                             .hint = hint});
    }
    // Its one state is of all parameters laid end to end.
    if (dynamic_cast<const torch::optim::LBFGS*>(&restore.optimizer) != nullptr &&
        file_groups[i].at("params").get<std::vector<std::string>>() != groups[i]) {
      throw CheckpointError({.what = concat(restore.path, " has LBFGS's parameters in another order"),
                             .expected = quoted(groups[i]),
                             .got = quoted(file_groups[i].at("params").get<std::vector<std::string>>()),
                             .hint = hint});
    }
  }
}

// A number without a point where the optimizer has a float ("lr": 1, from a tool or a hand) is that float.
Json as_typed(const Json& json, const Json& current) {
  if (current.is_number_float() && json.is_number_integer()) return json.get<double>();
  Json out = json;
  if (json.is_structured() && json.type() == current.type() && json.size() == current.size()) {
    for (auto it = out.begin(), of = out.begin(); it != out.end(); ++it) {
      if (json.is_array()) {
        *it = as_typed(*it, current[static_cast<size_t>(it - of)]);
      } else if (current.contains(it.key())) {
        *it = as_typed(*it, current[it.key()]);
      }
    }
  }
  return out;
}

// The options of every group as archives, tried on a copy.
std::vector<InputArchive> read_options(const Restore& restore) {
  std::vector<InputArchive> out;
  for (size_t i = 0; i < restore.parameters.groups.size(); ++i) {
    const std::string name = concat("param_groups.", i);
    const auto options = restore.optimizer.param_groups()[i].options().clone();
    TensorDict ignored;
    const Json json =
        as_typed(restore.file.at("param_groups")[i].at("options"), part_to_json(*options, name, ignored));
    OutputArchive archive;
    detail::json_to_archive(json, archive, [&](const std::string& tensor) {
      const at::Tensor found = restore.read(tensor);
      if (!found.defined()) damaged(restore.path, concat("the tensor '", tensor, "' is missing"));
      return found.clone();
    });
    InputArchive in = detail::read_back(archive);
    try {
      options->serialize(in);
    } catch (const c10::Error& error) {
      damaged(restore.path, concat("the options of group ", i, ": ", error.what_without_backtrace()));
    }
    TensorDict after;
    const Json written = part_to_json(*options, name, after);
    for (const auto& [key, value] : json.items()) {
      if (!written.contains(key) || written[key] != value) {
        damaged(restore.path, concat("option '", key, "' of group ", i, " can't be ", value.dump()));
      }
    }
    out.push_back(std::move(in));
  }
  return out;
}

// A state tensor as the optimizer will have it.
at::Tensor read_state_tensor(const Restore& restore, const std::string& parameter_name,
                             const std::string& tensor_name) {
  const at::Tensor& parameter = restore.parameters.tensors.at(parameter_name);
  const at::Tensor found = restore.read(tensor_name);
  if (!found.defined()) {
    throw CheckpointError({.what = concat(restore.path, ": the tensor '", tensor_name, "' is missing"),
                           .expected = concat("state of parameter '", parameter_name, "'"),
                           .got = "none",
                           .hint = "The files are not of the same checkpoint, or one of them is cut off."});
  }
  const bool same_shape = found.sizes() == parameter.sizes();
  if (!same_shape && has_parameter_shapes(restore.optimizer)) {
    throw CheckpointError({.what = concat(restore.path, ": the tensor '", tensor_name,
                                          "' does not fit parameter '", parameter_name, "'"),
                           .expected = concat("shape ", parameter.sizes()),
                           .got = concat("shape ", found.sizes()),
                           .hint = "Build the model with the sizes that it had when it was saved."});
  }
  const at::TensorOptions options = found.options().device(parameter.device());
  // Strides as the optimizer itself would have made them.
  const at::Tensor out = same_shape ? at::empty_like(parameter, options.requires_grad(false))
                                    : at::empty(found.sizes(), options);
  return out.copy_(found);
}

std::string key_of(const at::Tensor& parameter) {
  return std::to_string(reinterpret_cast<size_t>(parameter.unsafeGetTensorImpl()));
}

// What Optimizer::save() of LibTorch's optimizers would have written, for Optimizer::load().
OutputArchive whole_archive(const Restore& restore) {
  OutputArchive archive;
  OutputArchive states(archive.compilation_unit());
  for (const auto& [name, json] : restore.file.at("state").items()) {
    OutputArchive state(archive.compilation_unit());
    detail::json_to_archive(json, state, [&, parameter = name](const std::string& tensor) {
      return read_state_tensor(restore, parameter, tensor);
    });
    states.write(key_of(restore.parameters.tensors.at(name)), state);
  }
  OutputArchive groups(archive.compilation_unit());
  groups.write("param_groups/size", at::scalar_tensor(static_cast<int64_t>(restore.parameters.groups.size()),
                                                      at::TensorOptions(at::kLong)));
  for (size_t i = 0; i < restore.parameters.groups.size(); ++i) {
    const auto& parameters = restore.optimizer.param_groups()[i].params();
    OutputArchive group(archive.compilation_unit());
    group.write("params/size",
                at::scalar_tensor(static_cast<int64_t>(parameters.size()), at::TensorOptions(at::kLong)));
    for (size_t j = 0; j < parameters.size(); ++j) {
      group.write(concat("params/", j), c10::IValue(key_of(parameters[j])));
    }
    OutputArchive options(archive.compilation_unit());
    std::as_const(restore.optimizer.param_groups()[i].options()).serialize(options);
    group.write("options", options);
    groups.write(concat("param_groups/", i), group);
  }
  archive.write("pytorch_version", c10::IValue("1.5.0"));
  archive.write("state", states);
  archive.write("param_groups", groups);
  return archive;
}

// Puts the optimizer back as it was unless told otherwise.
class Rollback {
 public:
  explicit Rollback(Optimizer& optimizer) : optimizer_(optimizer) {
    for (const auto& group : optimizer.param_groups()) options_.push_back(group.options().clone());
    optimizer_.state().swap(state_);
  }
  ~Rollback() {
    if (done_) return;
    optimizer_.state().swap(state_);
    for (size_t i = 0; i < options_.size(); ++i) {
      optimizer_.param_groups()[i].set_options(std::move(options_[i]));
    }
  }
  Rollback(const Rollback&) = delete;
  Rollback& operator=(const Rollback&) = delete;
  void done() { done_ = true; }

 private:
  Optimizer& optimizer_;
  std::decay_t<decltype(std::declval<Optimizer&>().state())> state_;
  std::vector<std::unique_ptr<OptimizerOptions>> options_;
  bool done_ = false;
};

// Changes the optimizer, or throws and leaves it as it was.
void apply(const Restore& restore, std::vector<InputArchive>& options, const OutputArchive& archive) {
  Optimizer& optimizer = restore.optimizer;
  const Json& states = restore.file.at("state");
  Rollback rollback(optimizer);
  try {
    if (!states.empty()) {
      InputArchive in = detail::read_back(archive);
      optimizer.load(in);
    }
    for (size_t i = 0; i < options.size(); ++i) optimizer.param_groups()[i].options().serialize(options[i]);
  } catch (const c10::Error& error) {
    damaged(restore.path, error.what_without_backtrace());
  }
  for (const auto& [name, json] : states.items()) {
    const auto* key = restore.parameters.tensors.at(name).unsafeGetTensorImpl();
    if (optimizer.state().find(const_cast<at::TensorImpl*>(key)) == optimizer.state().end()) {
      throw CheckpointError({.what = concat(restore.path, ": ", type_name(optimizer),
                                            " did not take the state of parameter '", name, "'"),
                             .hint = "An optimizer of your own needs load(), as LibTorch's have it: see "
                                     "_TORCH_OPTIM_SERIALIZE_WITH_TEMPLATE_ARG in torch/optim/serialize.h."});
    }
  }
  rollback.done();
}

}  // namespace

OptimizerState capture_optimizer(const Optimizer& optimizer, const ParameterName& name_of) {
  const NamedParameters parameters = name_parameters(optimizer, name_of);
  OptimizerState out;
  Json file = {{"format_version", kFormatVersion}, {"type", type_name(optimizer)}};
  Json& groups = file["param_groups"] = Json::array();
  for (size_t i = 0; i < parameters.groups.size(); ++i) {
    Json group = Json::object();
    group["options"] =
        part_to_json(optimizer.param_groups()[i].options(), concat("param_groups.", i), out.tensors);
    group["params"] = parameters.groups[i];
    groups.push_back(std::move(group));
  }
  Json& states = file["state"] = Json::object();
  size_t known = 0;
  for (const auto& [name, parameter] : parameters.tensors) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) continue;
    states[name] = part_to_json(*found->second, name, out.tensors);
    ++known;
  }
  if (known != optimizer.state().size()) {
    throw CheckpointError({.what = "the optimizer has state that belongs to none of its parameters",
                           .expected = concat(known, " states"),
                           .got = concat(optimizer.state().size()),
                           .hint = "Was a parameter replaced after the first step? Make the optimizer from "
                                   "the model's present parameters."});
  }
  try {
    out.json = file.dump(2);
  } catch (const nlohmann::json::exception& error) {  // a name that is no UTF-8
    throw CheckpointError({.what = concat("the optimizer's state can't be written as JSON: ", error.what())});
  }
  return out;
}

void restore_optimizer(Optimizer& optimizer, const ParameterName& name_of, const std::string& json,
                       const ReadTensor& read, const std::string& path) {
  try {
    const Json file = Json::parse(json);
    check_version_and_type(file, optimizer, path);
    const Restore restore{optimizer, name_parameters(optimizer, name_of), file, read, path};
    check_groups(restore);
    std::vector<InputArchive> options = read_options(restore);
    apply(restore, options, whole_archive(restore));
  } catch (const nlohmann::json::exception& error) {
    damaged(path, error.what());
  } catch (const std::invalid_argument& error) {
    damaged(path, error.what());
  } catch (const c10::Error& error) {
    damaged(path, error.what_without_backtrace());
  }
}

}  // namespace accelerate
