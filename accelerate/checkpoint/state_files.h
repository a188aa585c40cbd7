#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/checkpoint/joint_save.h"
#include "accelerate/checkpoint/snapshot_buffer.h"
#include "accelerate/checkpoint/training_state.h"

// The files of a checkpoint, see Note [What a checkpoint holds].
namespace accelerate::detail {

inline constexpr const char* kTrainingStateFile = "training_state.json";

/// "model" for the first, "model_1" and so on for the others.
std::string numbered(const std::string& stem, size_t index);

/// "random_states_3.safetensors"
std::string random_states_file(int rank);
bool is_random_states_file(const std::string& name);

/// File of an object of `rank`.
std::string object_file(const RegisteredObject& object, int rank);

/// The names under which the parameters of all models are saved, by TensorImpl: those of the first model as
/// they are, others with the name of their model before them.
std::unordered_map<const void*, std::string> parameter_names(
    const std::vector<std::shared_ptr<ModelCore>>& models);

/// What a rank writes.
struct CollectedState {
  std::vector<FileToWrite> files;
  uint64_t bytes = 0;  ///< of tensors, of this rank
};

struct CollectOptions {
  int rank = 0;
  int size = 1;
  at::Device device = at::kCPU;
  bool sharded = false;
  /// Tensors are copied to it, so that training can go on; null: they are written as they are.
  SnapshotBuffer* snapshot = nullptr;
};

/// Collective where parameters are sharded.
/// @throws CheckpointError for tensors and values that can't be saved.
CollectedState collect_state(const TrainingParts& parts, const CollectOptions& options);

}  // namespace accelerate::detail
