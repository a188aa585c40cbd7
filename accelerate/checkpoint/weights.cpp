#include "accelerate/checkpoint/weights.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/checkpoint/store/merge_weights.h"
#include "accelerate/checkpoint/store/weight_files.h"
#include "accelerate/checkpoint/store/weight_output.h"
#include "accelerate/checkpoint/torch_file.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/strategy/state_dict.h"

namespace accelerate {
namespace {

constexpr uint64_t kMostIndexBytes = 100'000'000;
constexpr size_t kMostNames = 8;

bool is_torch_file(const std::string& path) {
  for (const char* suffix : {".bin", ".pt", ".pth", ".ckpt"}) {
    if (path.ends_with(suffix)) return true;
  }
  return false;
}

// All tensors of the files that an index of Python's .bin files names.
TensorDict read_bin_index(const std::string& path, const std::string& key) {
  const nlohmann::json json =
      nlohmann::json::parse(read_whole_file(system_files(), path, kMostIndexBytes), nullptr, false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object())
    throw CheckpointError({.what = concat(path, " is no index: it has no weight_map")});
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos)
      throw CheckpointError(
          {.what = concat(path, ": the file of '", tensor, "' is no name beside the index")});
    names.insert(name);
  }
  TensorDict out;
  for (const std::string& name : names)
    out.merge(load_torch_file(path_in(parent_directory(path), name), key));
  for (const auto& [tensor, file] : map->items()) {
    if (!out.contains(tensor))
      throw CheckpointError({.what = concat(path, " names '", tensor, "', which no file holds")});
  }
  return out;
}

std::string list_of(std::vector<std::string> names, const char* separator = ", ") {
  const size_t more = names.size() - std::min(names.size(), kMostNames);
  names.resize(names.size() - more);
  return more == 0 ? join(names, separator) : concat(join(names, separator), " and ", more, " more");
}

std::string sizes_text(const at::Tensor& tensor) {
  std::vector<std::string> parts;
  for (const int64_t size : tensor.sizes()) parts.push_back(std::to_string(size));
  return concat("[", join(parts, ", "), "]");
}

bool convertible(const at::Tensor& from, const at::Tensor& to) {
  return from.scalar_type() == to.scalar_type() || (from.is_floating_point() && to.is_floating_point()) ||
         (!from.is_floating_point() && !to.is_floating_point() && !from.is_complex() && !to.is_complex());
}

}  // namespace

struct WeightSource::State {
  std::string path;
  TensorDict tensors;                  // of files that torch wrote
  std::vector<SafetensorsFile> files;  // otherwise
  struct Place {
    size_t file = 0;
    SafetensorsEntry entry;
  };
  std::map<std::string, Place> places;
  std::map<std::string, std::string> tied;  // a name without data of its own, and the one that has them

  void add_safetensors(const std::string& input);
  const std::string& kept(const std::string& name) const {
    const auto found = tied.find(name);
    return found == tied.end() ? name : found->second;
  }
};

void WeightSource::State::add_safetensors(const std::string& input) {
  const WeightFiles found = read_weight_files(system_files(), input);
  for (const std::string& file : found.paths) {
    files.emplace_back(file);
    for (const SafetensorsEntry& entry : files.back().header().tensors)
      places[entry.name] = {files.size() - 1, entry};
  }
  for (const auto& [name, kept] : found.tied) tied[name] = kept;
  // Written by us or by HF: names that were left out stand in the metadata.
  for (const auto& [name, kept] : found.metadata) {
    if (!places.contains(name) && places.contains(kept)) tied[name] = kept;
  }
}

WeightSource::WeightSource(std::unique_ptr<State> state) : state_(std::move(state)) {}
WeightSource::WeightSource(WeightSource&&) noexcept = default;
WeightSource::~WeightSource() = default;

WeightSource WeightSource::open(const std::string& path, const std::string& key) {
  FileSystem& files = system_files();
  auto state = std::make_unique<State>();
  state->path = path;
  const std::optional<FileInfo> info = files.info(path);
  std::string file = path;
  if (info && info->kind == FileKind::kDirectory) {
    const bool has_index = files.exists(path_in(path, "pytorch_model.bin.index.json"));
    const bool has_bin = files.exists(path_in(path, "pytorch_model.bin"));
    const bool is_newer = files.exists(path_in(path, "model.safetensors")) ||
                          files.exists(path_in(path, "model.safetensors.index.json"));
    if (!is_newer && (has_index || has_bin))
      file = path_in(path, has_index ? "pytorch_model.bin.index.json" : "pytorch_model.bin");
  }
  if (file.ends_with(".bin.index.json")) {
    state->tensors = read_bin_index(file, key);
  } else if (is_torch_file(file)) {
    state->tensors = load_torch_file(file, key);
  } else {
    state->add_safetensors(file);
  }
  return WeightSource(std::move(state));
}

const std::string& WeightSource::path() const {
  return state_->path;
}

std::vector<std::string> WeightSource::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : state_->tensors) out.push_back(name);
  for (const auto& [name, place] : state_->places) out.push_back(name);
  for (const auto& [name, kept] : state_->tied) {
    if (!state_->places.contains(name)) out.push_back(name);
  }
  return out;
}

at::Tensor WeightSource::read(const std::string& name) const {
  const auto loaded = state_->tensors.find(name);
  if (loaded != state_->tensors.end()) return loaded->second;
  const auto place = state_->places.find(state_->kept(name));
  if (place == state_->places.end()) return {};
  return state_->files[place->second.file].tensor(place->second.entry);
}

void WeightSource::release(const std::string& name) const {
  const auto place = state_->places.find(state_->kept(name));
  if (place != state_->places.end()) state_->files[place->second.file].release(place->second.entry);
}

LoadWeightsReport load_weights(const TensorDict& targets, const WeightSource& source,
                               const LoadWeightsOptions& options) {
  LoadWeightsReport report;
  struct Copy {
    std::string from;
    at::Tensor to;
  };
  std::vector<Copy> copies;
  std::set<std::pair<const void*, size_t>> filled;
  std::set<std::string> named;
  for (const auto& [name, tensor] : targets) {
    if (!tensor.is_meta()) continue;
    throw CheckpointError({.what = concat("loading weights into '", name, "', which is on the meta device"),
                           .hint = "Give the model memory first."});
  }
  for (const std::string& name : source.names()) {
    const std::string wanted = options.rename ? options.rename(name) : name;
    if (wanted.empty()) continue;
    const auto target = targets.find(wanted);
    if (target == targets.end()) {
      report.unexpected.push_back(wanted == name ? name : concat(name, " (as ", wanted, ")"));
      continue;
    }
    named.insert(wanted);
    const at::Tensor stored = source.read(name);
    const at::Tensor& own = target->second;
    if (stored.sizes() != own.sizes()) {
      report.mismatched.push_back(
          concat(wanted, ": ", sizes_text(stored), " in the file, ", sizes_text(own), " in the model"));
      continue;
    }
    if (!convertible(stored, own)) {
      report.mismatched.push_back(concat(wanted, ": ", c10::toString(stored.scalar_type()), " in the file, ",
                                         c10::toString(own.scalar_type()), " in the model"));
      continue;
    }
    if (stored.scalar_type() != own.scalar_type()) {
      report.converted.push_back(concat(wanted, ": ", c10::toString(stored.scalar_type()), " to ",
                                        c10::toString(own.scalar_type())));
    }
    filled.emplace(own.const_data_ptr(), own.nbytes());
    copies.push_back({name, own});
  }
  for (const auto& [name, tensor] : targets) {
    const bool is_shared = tensor.numel() > 0 && filled.contains({tensor.const_data_ptr(), tensor.nbytes()});
    if (!named.contains(name) && !is_shared) report.missing.push_back(name);
  }
  if (options.strict && !report.complete()) {
    std::vector<std::string> problems;
    if (!report.missing.empty()) problems.push_back(concat("missing: ", list_of(report.missing)));
    if (!report.unexpected.empty())
      problems.push_back(concat("not in the model: ", list_of(report.unexpected)));
    if (!report.mismatched.empty())
      problems.push_back(concat("of another shape or kind: ", list_of(report.mismatched, "; ")));
    throw CheckpointError(
        {.what = concat("the weights in ", source.path(), " do not fit the model: ", join(problems, "; ")),
         .hint = "Load them into the model they were saved from, map names with "
                 "LoadWeightsOptions::rename, or set strict to false to load what fits."});
  }
  const at::NoGradGuard no_grad;
  for (const Copy& copy : copies) {
    copy.to.copy_(source.read(copy.from));
    source.release(copy.from);
  }
  return report;
}

LoadWeightsReport load_checkpoint_in_model(torch::nn::Module& module, const std::string& path,
                                           const LoadWeightsOptions& options) {
  return load_weights(state_dict(module), WeightSource::open(path, options.key), options);
}

SavedWeights save_weights(FileSystem& files, const TensorDict& tensors, const std::string& directory,
                          const SaveWeightsOptions& options) {
  std::optional<uint64_t> limit;
  if (!options.max_shard_size.empty()) limit = parse_shard_size(options.max_shard_size);
  SavedWeights out;
  const TensorDict kept = without_shared(tensors, &out.shared);
  std::vector<std::string> names;
  std::vector<uint64_t> sizes;
  for (const auto& [name, tensor] : kept) {
    names.push_back(name);
    sizes.push_back(static_cast<uint64_t>(tensor.numel()) * tensor.element_size());
  }
  const ShardPlan plan = plan_shards(sizes, limit);
  std::map<std::string, std::string> metadata = safetensors_metadata();
  metadata.insert(options.metadata.begin(), options.metadata.end());
  for (const auto& [left_out, name] : out.shared) metadata.emplace(left_out, name);

  const WeightOutput output{.folder = directory};
  files.create_directories(directory);  // says what is wrong with it
  std::vector<std::string> shard_names;
  std::vector<SafetensorsPlan> shards;
  std::map<std::string, std::string> map;
  for (size_t i = 0; i < plan.shards.size(); ++i) {
    shard_names.push_back(weight_shard_name(output.stem, i, plan.shards.size()));
    TensorDict part;
    for (const size_t member : plan.shards[i]) {
      part.emplace(names[member], kept.at(names[member]));
      map[names[member]] = shard_names.back();
    }
    shards.push_back(plan_safetensors(part, metadata));
  }
  const std::string index = shards.size() > 1 ? weight_index_text(map, plan.total_bytes) : "";
  write_weight_set(
      files, output, shard_names,
      [&](size_t shard, WritableFile& file) { write_safetensors(file, shards[shard]); }, index);
  out.path = output.path(index.empty() ? shard_names.front() : output.index_name());
  return out;
}

}  // namespace accelerate
