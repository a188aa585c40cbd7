#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/checkpoint/safetensors.h"
#include "accelerate/core/file_system.h"
#include "accelerate/data/tensor_dict.h"

namespace accelerate {

/// The weights of a model as they lie on disk, read one by one.
class WeightSource {
 public:
  /// `path`: a folder with model.safetensors, model.safetensors.index.json and its files, or Python's
  /// pytorch_model.bin (with pytorch_model.bin.index.json); or one such file or index; or a file that
  /// torch.save or torch::save wrote (.bin, .pt, .pth, .ckpt), of which `key` names the part that holds the
  /// weights, see load_torch_file().
  /// @throws CheckpointError naming the path and what is wrong: nothing there, damaged, index and files that
  /// do not agree.
  static WeightSource open(const std::string& path, const std::string& key = "");

  WeightSource(WeightSource&&) noexcept;
  ~WeightSource();

  const std::string& path() const;
  /// All names, those of shared tensors too.
  std::vector<std::string> names() const;
  /// A tensor on the CPU, mostly in mapped memory; undefined if there is none of that name.
  at::Tensor read(const std::string& name) const;
  /// Gives the memory behind a tensor back once it has been copied.
  void release(const std::string& name) const;

 private:
  struct State;
  explicit WeightSource(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Options of load_weights().
struct LoadWeightsOptions {
  /// Names that are missing or left over, and shapes that differ, are an error. Without it they are told in
  /// the result, and what fits is loaded.
  bool strict = true;
  /// Of a file that torch wrote: the part that holds the weights ("model_state_dict").
  std::string key = {};
  /// Turns names of the file into the module's ("model.layers.0.weight" to "layers.0.weight"); an empty
  /// result leaves the tensor out. Default: as they are.
  std::function<std::string(const std::string& name)> rename = {};
};

/// What load_weights() did.
struct LoadWeightsReport {
  std::vector<std::string> missing;     ///< of the model, not in the file
  std::vector<std::string> unexpected;  ///< of the file, not in the model
  std::vector<std::string> mismatched;  ///< "fc.weight: [10, 64] in the file, [10, 128] in the model"
  std::vector<std::string> converted;   ///< loaded into another dtype: "fc.weight: BFloat16 to Float"

  bool complete() const { return missing.empty() && unexpected.empty() && mismatched.empty(); }
};

/// Local. Copies the tensors of `source` into those of `targets`, in place, whatever their device and (within
/// floating and within integer types) their dtype. Names of `targets` that are the same memory need only one
/// of them in the file. Holds one tensor of the file in memory at a time.
/// @throws CheckpointError, in strict mode, before anything is changed, listing all that does not fit.
LoadWeightsReport load_weights(const TensorDict& targets, const WeightSource& source,
                               const LoadWeightsOptions& options = {});

/// Local. Loads the parameters and buffers of a module from what WeightSource::open() takes. HF's name.
/// @throws as WeightSource::open() and load_weights().
LoadWeightsReport load_checkpoint_in_model(torch::nn::Module& module, const std::string& path,
                                           const LoadWeightsOptions& options = {});

/// Options of save_weights().
struct SaveWeightsOptions {
  /// No file grows larger, but for a single tensor that is. "5GB", "500MB" (powers of 1000); empty: one file.
  /// Default: HF's.
  std::string max_shard_size = "10GB";
  /// Further entries of the files' metadata.
  std::map<std::string, std::string> metadata = {};
};

/// What save_weights() wrote.
struct SavedWeights {
  std::string path;    ///< of the file, or of the index where there are several
  SharedNames shared;  ///< tensors that share their memory and are saved under the other's name
};

/// Local. Writes named tensors as `directory`/model.safetensors, or as several files with their index. Files
/// of an earlier model there are replaced or removed; see write_weight_set() for what a crash leaves.
/// @throws CheckpointError as save_safetensors(); ConfigError for a size that can't be.
SavedWeights save_weights(FileSystem& files, const TensorDict& tensors, const std::string& directory,
                          const SaveWeightsOptions& options = {});

}  // namespace accelerate
