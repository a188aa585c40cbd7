#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/optimizer_file.h"
#include "accelerate/checkpoint/rng_state.h"
#include "accelerate/checkpoint/safetensors.h"
#include "accelerate/checkpoint/state_files.h"
#include "accelerate/checkpoint/store/manifest.h"
#include "accelerate/checkpoint/training_state.h"
#include "accelerate/checkpoint/weights.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/strategy/state_dict.h"

namespace accelerate::detail {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormatVersion = 1;

Json read_state(const std::string& path) {
  const std::string file = path_in(path, kTrainingStateFile);
  Json json;
  try {
    json = Json::parse(read_whole_file(system_files(), file));
  } catch (const Json::exception& error) {
    throw CheckpointError({.what = concat(file, " can't be read: ", error.what())});
  }
  const int64_t version = json.is_object() ? json.value("format_version", int64_t{0}) : 0;
  if (version != kFormatVersion) {
    throw CheckpointError({.what = concat("the format of ", file),
                           .expected = concat("version ", kFormatVersion),
                           .got = std::to_string(version),
                           .hint = "Load it with the release that wrote it, or a newer one."});
  }
  return json;
}

// As many were saved as there are now.
void check_count(const std::string& path, const char* what, const char* how, size_t saved, size_t here) {
  if (saved == here) return;
  throw CheckpointError({.what = concat(path, " holds ", saved, " ", what, saved == 1 ? "" : "s"),
                         .got = concat(here, " in this program"),
                         .hint = concat("Give the same ", what, "s to ", how, ", in the same order.")});
}

void load_model(const ModelCore& model, const std::string& path) {
  const WeightSource source = WeightSource::open(path);
  load_weights(state_dict(*model.module), source);
}

void load_optimizer(OptimizerCore& optimizer, const ParameterName& name_of, const std::string& path,
                    const Json& entry) {
  const std::string state_path = path_in(path, entry.at("state").get<std::string>());
  const WeightSource source = WeightSource::open(path_in(path, entry.at("tensors").get<std::string>()));
  std::string last;
  const auto read = [&](const std::string& name) {
    if (!last.empty()) source.release(last);
    last = name;
    return source.read(name);
  };
  restore_optimizer(optimizer.optimizer(), name_of, read_whole_file(system_files(), state_path), read,
                    state_path);
  optimizer.set_steps_taken(entry.at("steps_taken").get<int64_t>());
}

LoaderState loader_state(const Json& entry) {
  LoaderState state{.epoch = entry.at("epoch").get<int64_t>(),
                    .samples_seen = entry.at("samples_seen").get<int64_t>(),
                    .world_size = entry.at("world_size").get<int64_t>()};
  if (entry.contains("seed")) state.seed = entry.at("seed").get<uint64_t>();
  return state;
}

void load_objects(const std::vector<RegisteredObject>& objects, const Json& saved, const std::string& path,
                  const ProcessContext& context, int64_t world_size) {
  const int rank = context.topology.rank;
  for (size_t i = 0; i < objects.size(); ++i) {
    const RegisteredObject& object = objects[i];
    const Json& entry = saved.at(i);
    if (entry.at("name") != object.name || entry.at("per_rank") != object.per_rank) {
      throw CheckpointError(
          {.what = concat("registered object number ", i, " of ", path),
           .expected = concat("'", object.name, "'", object.per_rank ? " of each rank" : ""),
           .got = entry.dump(),
           .hint = "Register the same objects in the same order."});
    }
    if (object.per_rank && rank >= world_size) continue;  // a new rank keeps what it has
    const std::string file = path_in(path, object_file(object, rank));
    try {
      object.load(read_whole_file(system_files(), file), context.device);
    } catch (const std::exception& error) {
      throw CheckpointError({.what = concat(file, ": ", error_message(error))});
    }
  }
}

}  // namespace

void TrainingState::load_random_states(const std::string& path, const LoadStateOptions& options,
                                       const LoadedState& loaded, bool is_damaged) {
  const int rank = context_.topology.rank;
  const std::string file = path_in(path, random_states_file(rank));
  const bool is_new = rank >= loaded.world_size;
  if (is_new && !options.strict) return;  // told already
  std::string problem = is_new ? "it was written by fewer ranks" : "";
  if (is_damaged) problem = "it is damaged";
  try {
    if (problem.empty()) {
      const std::vector<std::string> lacking = set_rng_states(context_.device, load_safetensors(file));
      if (!lacking.empty()) problem = concat("it holds no state for ", accelerate::join(lacking, ", "));
    }
  } catch (const CheckpointError& error) {
    problem = error.what();
  }
  if (problem.empty()) return;
  const std::string text =
      concat("the random generators of rank ", rank, " are not restored from ", file, ": ", problem);
  if (options.strict) {
    throw CheckpointError(
        {.what = text,
         .hint = "Load without LoadStateOptions::strict to go on with other random numbers.",
         .rank = rank});
  }
  context_.logger->warning(text + "; it goes on with other random numbers", LogRanks::kAll);
}

void TrainingState::load_parts(const TrainingParts& parts, const std::string& path,
                               const LoadStateOptions& options, const std::vector<std::string>& damaged,
                               LoadedState& loaded) {
  const CheckpointManifest manifest = read_manifest(system_files(), path);
  loaded.iteration = manifest.iteration;
  loaded.optimizer_steps = manifest.optimizer_steps;
  loaded.epoch = manifest.epoch;
  loaded.world_size = manifest.world_size;
  const int size = context_.communicator->size();
  if (manifest.world_size != size) {
    context_.logger->warning(concat(path, " was written by ", manifest.world_size,
                                    manifest.world_size == 1 ? " rank" : " ranks", " and is loaded by ", size,
                                    size > manifest.world_size
                                        ? ": the random generators of the new ranks go on "
                                          "from their own seeds"
                                        : "",
                                    "; the training goes on with batches and random numbers of other ranks"));
  }
  for (const auto& [number, hook] : load_hooks_) hook(path);
  const Json state = read_state(path);
  try {
    const Json& models = state.at("models");
    const Json& optimizers = state.at("optimizers");
    const Json& schedulers = state.at("schedulers");
    const Json& loaders = state.at("dataloaders");
    const Json& objects = state.at("objects");
    check_count(path, "model", "prepare()", models.size(), parts.models.size());
    check_count(path, "optimizer", "prepare()", optimizers.size(), parts.optimizers.size());
    check_count(path, "scheduler", "prepare()", schedulers.size(), parts.schedulers.size());
    check_count(path, "data loader", "prepare()", loaders.size(), parts.loaders.size());
    check_count(path, "object", "register_for_checkpointing()", objects.size(), parts.objects.size());
    for (size_t i = 0; i < models.size(); ++i)
      load_model(*parts.models[i], path_in(path, models[i].get<std::string>()));
    const auto names = parameter_names(parts.models);
    const auto name_of = [&names](const at::Tensor& parameter) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      return found == names.end() ? std::string() : found->second;
    };
    for (size_t i = 0; i < optimizers.size(); ++i)
      load_optimizer(*parts.optimizers[i], name_of, path, optimizers[i]);
    for (size_t i = 0; i < schedulers.size(); ++i) parts.schedulers[i].load(schedulers[i].dump());
    for (size_t i = 0; i < loaders.size(); ++i) {
      const int64_t samples = loaders[i].value("samples", int64_t{0});
      const int64_t here = parts.loaders[i]->shard().num_positions;
      if (samples != here) {
        context_.logger->warning(concat("data loader number ", i, " had ", samples, " samples when ", path,
                                        " was written, and has ", here, ": its order is another one"));
      }
      parts.loaders[i]->load_state(loader_state(loaders[i]));
    }
    load_objects(parts.objects, objects, path, context_, manifest.world_size);
    const bool has_scaler = state.contains("scaler");
    if (has_scaler && parts.scaler) {
      parts.scaler->load_state({.scale = state.at("scaler").at("scale").get<double>(),
                                .growth_tracker = state.at("scaler").at("growth_tracker").get<int64_t>()});
    } else if (has_scaler != (parts.scaler != nullptr)) {
      context_.logger->warning(has_scaler ? concat(path,
                                                   " was written under fp16, and is loaded without: its "
                                                   "gradient scale is left out")
                                          : concat(path, " holds no gradient scale: it starts anew"));
    }
  } catch (const Json::exception& error) {
    throw CheckpointError({.what = concat(path_in(path, kTrainingStateFile), ": ", error.what())});
  }
  if (parts.accumulation) parts.accumulation->restart();
  // What backward passes before the load have left belongs to other weights.
  for (const auto& optimizer : parts.optimizers) {
    for (const auto& group : optimizer->optimizer().param_groups()) {
      for (const at::Tensor& parameter : group.params()) parameter.mutable_grad().reset();
    }
  }
  const std::string own = random_states_file(context_.topology.rank);
  load_random_states(path, options, loaded, std::find(damaged.begin(), damaged.end(), own) != damaged.end());
}

}  // namespace accelerate::detail
