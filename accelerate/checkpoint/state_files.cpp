#include "accelerate/checkpoint/state_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/checkpoint/optimizer_file.h"
#include "accelerate/checkpoint/rng_state.h"
#include "accelerate/checkpoint/safetensors.h"
#include "accelerate/checkpoint/store/weight_output.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

using Json = nlohmann::ordered_json;

void write_text(WritableFile& file, const std::string& text) {
  file.write(std::as_bytes(std::span(text.data(), text.size())));
}

uint64_t tensor_bytes(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel()) * tensor.element_size();
}

// Tensors by the rank that writes them: consecutive names, about equally many bytes each. `main_only` are
// those whose value on the main process counts.
std::vector<TensorDict> share_out(const TensorDict& tensors, int size,
                                  const std::set<std::string>& main_only) {
  std::vector<TensorDict> out(static_cast<size_t>(size));
  uint64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += main_only.contains(name) ? 0 : tensor_bytes(tensor);
  uint64_t before = 0;
  for (const auto& [name, tensor] : tensors) {
    if (main_only.contains(name)) {
      out[0].emplace(name, tensor);
      continue;
    }
    const uint64_t middle = before + tensor_bytes(tensor) / 2;
    const uint64_t rank = total == 0 ? 0 : middle * static_cast<uint64_t>(size) / total;
    out[std::min<uint64_t>(rank, static_cast<uint64_t>(size) - 1)].emplace(name, tensor);
    before += tensor_bytes(tensor);
  }
  return out;
}

class Collector {
 public:
  Collector(const TrainingParts& parts, const CollectOptions& options) : parts_(parts), options_(options) {}

  CollectedState run() {
    for (size_t i = 0; i < parts_.models.size(); ++i) add_model(i);
    const auto names = parameter_names(parts_.models);
    const auto name_of = [&names](const at::Tensor& parameter) {
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      return found == names.end() ? std::string() : found->second;
    };
    for (size_t i = 0; i < parts_.optimizers.size(); ++i) add_optimizer(i, name_of);
    add_plan(random_states_file(options_.rank), plan_safetensors(rng_states(options_.device)));
    for (const RegisteredObject& object : parts_.objects) {
      if (is_main() || object.per_rank) add_text(object_file(object, options_.rank), object.save());
    }
    if (is_main()) add_text(kTrainingStateFile, training_state().dump(2) + "\n");
    copy_tensors();
    return std::move(out_);
  }

 private:
  bool is_main() const { return options_.rank == 0; }

  void add_text(const std::string& name, std::string text) {
    out_.files.push_back({name, [text = std::move(text)](WritableFile& file) { write_text(file, text); }});
  }

  void add_plan(const std::string& name, SafetensorsPlan plan) {
    const auto held = std::make_shared<SafetensorsPlan>(std::move(plan));
    for (const at::Tensor& tensor : held->tensors) out_.bytes += tensor_bytes(tensor);
    plans_.push_back(held);
    out_.files.push_back({name, [held](WritableFile& file) { write_safetensors(file, *held); }});
  }

  // `main_only`: names of tensors that other ranks may have otherwise.
  std::string add_tensors(const std::string& stem, const TensorDict& tensors,
                          const std::set<std::string>& main_only) {
    const WeightOutput output{.folder = {}, .stem = stem};
    SharedNames shared;
    const TensorDict kept = without_shared(tensors, &shared);
    std::vector<TensorDict> parts;
    if (options_.sharded && options_.size > 1) parts = share_out(kept, options_.size, main_only);
    const auto filled =
        std::count_if(parts.begin(), parts.end(), [](const auto& part) { return !part.empty(); });
    if (filled < 2) {
      const std::string name = weight_shard_name(stem, 0, 1);
      if (is_main()) add_plan(name, plan_safetensors(tensors));
      return name;
    }
    std::map<std::string, std::string> metadata = safetensors_metadata();
    for (const auto& [left_out, name] : shared) metadata.emplace(left_out, name);
    std::map<std::string, std::string> map;
    uint64_t total = 0;
    size_t shard = 0;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      if (parts[rank].empty()) continue;
      const std::string name = weight_shard_name(stem, shard++, static_cast<size_t>(filled));
      for (const auto& [tensor_name, tensor] : parts[rank]) {
        map[tensor_name] = name;
        total += tensor_bytes(tensor);
      }
      if (rank == static_cast<size_t>(options_.rank)) add_plan(name, plan_safetensors(parts[rank], metadata));
    }
    if (is_main()) add_text(output.index_name(), weight_index_text(map, total));
    return output.index_name();
  }

  void add_model(size_t index) {
    torch::nn::Module& module = *parts_.models[index]->module;
    const TensorDict tensors = parts_.strategy->full_state_dict(module);
    std::set<std::string> buffers;
    for (const auto& entry : module.named_buffers()) buffers.insert(entry.key());
    model_files_.push_back(add_tensors(numbered("model", index), tensors, buffers));
  }

  void add_optimizer(size_t index, const ParameterName& name_of) {
    OptimizerState state = capture_optimizer(parts_.optimizers[index]->optimizer(), name_of);
    const std::string stem = numbered("optimizer", index);
    const std::string tensors = add_tensors(stem, state.tensors, {});
    if (is_main()) add_text(stem + ".json", std::move(state.json));
    optimizer_files_.push_back({{"state", stem + ".json"},
                                {"tensors", tensors},
                                {"steps_taken", parts_.optimizers[index]->steps_taken()}});
  }

  Json training_state() const {
    Json schedulers = Json::array();
    for (const SchedulerSlot& slot : parts_.schedulers) schedulers.push_back(Json::parse(slot.save()));
    Json loaders = Json::array();
    for (const auto& loader : parts_.loaders) {
      const LoaderState state = loader->state();
      Json entry = {{"epoch", state.epoch},
                    {"samples_seen", state.samples_seen},
                    {"world_size", state.world_size},
                    {"samples", loader->shard().num_positions}};
      if (state.seed) entry["seed"] = *state.seed;
      loaders.push_back(std::move(entry));
    }
    Json objects = Json::array();
    for (const RegisteredObject& object : parts_.objects)
      objects.push_back({{"name", object.name}, {"per_rank", object.per_rank}});
    Json out = {{"format_version", 1},
                {"world_size", options_.size},
                {"models", model_files_},
                {"optimizers", optimizer_files_},
                {"schedulers", std::move(schedulers)},
                {"dataloaders", std::move(loaders)},
                {"objects", std::move(objects)}};
    if (parts_.scaler) {
      const GradScalerState state = parts_.scaler->state();
      out["scaler"] = {{"scale", state.scale}, {"growth_tracker", state.growth_tracker}};
    }
    return out;
  }

  // Last, when nothing can fail any more but memory.
  void copy_tensors() {
    if (options_.snapshot == nullptr) return;
    size_t room = 0;
    for (const auto& plan : plans_) {
      for (const at::Tensor& tensor : plan->tensors) room += SnapshotBuffer::room_for(tensor);
    }
    options_.snapshot->reset(room, options_.device.is_cuda());
    for (const auto& plan : plans_) {
      for (at::Tensor& tensor : plan->tensors) tensor = options_.snapshot->copy(tensor);
    }
  }

  const TrainingParts& parts_;
  const CollectOptions& options_;
  CollectedState out_;
  std::vector<std::shared_ptr<SafetensorsPlan>> plans_;
  std::vector<std::string> model_files_;
  Json optimizer_files_ = Json::array();
};

}  // namespace

std::string numbered(const std::string& stem, size_t index) {
  return index == 0 ? stem : concat(stem, "_", index);
}

std::string random_states_file(int rank) {
  return concat("random_states_", rank, ".safetensors");
}

bool is_random_states_file(const std::string& name) {
  return name.starts_with("random_states_") && name.ends_with(".safetensors");
}

std::string object_file(const RegisteredObject& object, int rank) {
  return object.per_rank ? concat(object.name, "_rank_", rank, ".bin") : object.name + ".bin";
}

std::unordered_map<const void*, std::string> parameter_names(
    const std::vector<std::shared_ptr<ModelCore>>& models) {
  std::unordered_map<const void*, std::string> out;
  for (size_t i = 0; i < models.size(); ++i) {
    const std::string prefix = i == 0 ? "" : numbered("model", i) + ".";
    for (const auto& entry : models[i]->module->named_parameters())
      out.emplace(entry.value().unsafeGetTensorImpl(), prefix + entry.key());
  }
  return out;
}

CollectedState collect_state(const TrainingParts& parts, const CollectOptions& options) {
  return Collector(parts, options).run();
}

}  // namespace accelerate::detail
