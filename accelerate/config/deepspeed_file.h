#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/config/config.h"

namespace accelerate {

// DeepSpeed's own JSON file, named by deepspeed_config.deepspeed_config_file. Members carry the file's names
// (https://www.deepspeed.ai/docs/config-json); nothing means "not given", and the comment then says what
// DeepSpeed takes. Any value may be the word "auto", which whoever trains resolves from the model, the loader
// or the accelerate configuration: DeepSpeedFile::autos lists those.

/// A value of the file: not given, "auto", or there.
template <class T>
using DeepSpeedValue = std::optional<OrAuto<T>>;

/// zero_optimization.offload_optimizer or .offload_param.
struct DeepSpeedOffload {
  DeepSpeedValue<std::string> device;     ///< none, cpu or nvme [none]
  DeepSpeedValue<std::string> nvme_path;  ///< folder; needed with device nvme
  DeepSpeedValue<bool> pin_memory;        ///< page-locked host memory [false]
  DeepSpeedValue<int64_t> buffer_count;   ///< buffers for nvme [4; parameters: 5]
  DeepSpeedValue<int64_t> buffer_size;    ///< parameters: elements of one buffer [1e8]
  DeepSpeedValue<int64_t> max_in_cpu;     ///< parameters: elements kept in host memory with nvme [1e9]
  DeepSpeedValue<double> ratio;           ///< optimizer: part of the state that is offloaded [1]
  DeepSpeedValue<bool> pipeline_read;     ///< optimizer on nvme: read ahead [false]
  DeepSpeedValue<bool> pipeline_write;    ///< optimizer on nvme: write behind [false]

  bool operator==(const DeepSpeedOffload&) const = default;
};

/// zero_optimization. Sizes are numbers of elements, not bytes.
struct DeepSpeedZero {
  DeepSpeedValue<int64_t> stage;  ///< 0 none, 1 optimizer state, 2 and gradients, 3 and parameters [0]
  DeepSpeedOffload offload_optimizer;
  DeepSpeedOffload offload_param;                       ///< stage 3 only
  DeepSpeedValue<bool> contiguous_gradients;            ///< copy gradients into one buffer [true]
  DeepSpeedValue<bool> overlap_comm;                    ///< reduce during the backward pass [stage 3: true]
  DeepSpeedValue<bool> reduce_scatter;                  ///< instead of all-reduce [true]
  DeepSpeedValue<int64_t> reduce_bucket_size;           ///< [5e8]
  DeepSpeedValue<bool> allgather_partitions;            ///< instead of broadcasts [true]
  DeepSpeedValue<int64_t> allgather_bucket_size;        ///< [5e8]
  DeepSpeedValue<int64_t> sub_group_size;               ///< stage 3: elements updated at a time [1e9]
  DeepSpeedValue<bool> round_robin_gradients;           ///< stages 1 and 2 with offload [false]
  DeepSpeedValue<bool> ignore_unused_parameters;        ///< stage 2 [true]
  DeepSpeedValue<int64_t> prefetch_bucket_size;         ///< stage3_prefetch_bucket_size [5e7]
  DeepSpeedValue<int64_t> param_persistence_threshold;  ///< stage3_...: smaller ones stay whole [1e5]
  DeepSpeedValue<int64_t> model_persistence_threshold;  ///< stage3_...: most that stays whole [no limit]
  DeepSpeedValue<int64_t> max_live_parameters;          ///< stage3_max_live_parameters [1e9]
  DeepSpeedValue<int64_t> max_reuse_distance;           ///< stage3_max_reuse_distance [1e9]
  /// stage3_gather_16bit_weights_on_model_save: whole weights when saving [false].
  DeepSpeedValue<bool> gather_16bit_weights_on_model_save;

  bool operator==(const DeepSpeedZero&) const = default;
};

/// fp16.
struct DeepSpeedFp16 {
  DeepSpeedValue<bool> enabled;                 ///< [false]
  DeepSpeedValue<double> loss_scale;            ///< fixed scale; 0: dynamic [0]
  DeepSpeedValue<int64_t> initial_scale_power;  ///< a dynamic scale starts at 2 to this power [16]
  DeepSpeedValue<int64_t> loss_scale_window;    ///< good steps before the scale doubles [1000]
  DeepSpeedValue<int64_t> hysteresis;           ///< overflows before the scale is halved [2]
  DeepSpeedValue<bool> consecutive_hysteresis;  ///< a good step resets that count [false]
  DeepSpeedValue<double> min_loss_scale;        ///< [1]
  DeepSpeedValue<bool> auto_cast;               ///< inputs are cast to fp16 [false]

  bool operator==(const DeepSpeedFp16&) const = default;
};

/// bf16. It has no loss scale; such keys, copied from fp16, are passed over.
struct DeepSpeedBf16 {
  DeepSpeedValue<bool> enabled;                ///< [false]
  DeepSpeedValue<bool> immediate_grad_update;  ///< add into the master gradient at once [true]

  bool operator==(const DeepSpeedBf16&) const = default;
};

/// optimizer or scheduler. Types are DeepSpeed's names or those of classes in torch.optim, and not checked
/// here.
struct DeepSpeedComponent {
  DeepSpeedValue<std::string> type;  ///< "AdamW", "WarmupLR"; nothing: made by the program
  /// The constructor's arguments as texts (parse_double() and parse_bool() read them), a list as its items:
  /// {"lr": {"3e-4"}, "betas": {"0.9", "0.95"}}.
  std::map<std::string, OrAuto<std::vector<std::string>>> params;

  bool operator==(const DeepSpeedComponent&) const = default;
};

/// What a DeepSpeed JSON file says. Made by read_deepspeed_file(); a plain value, safe to copy.
struct DeepSpeedFile {
  DeepSpeedValue<int64_t> train_batch_size;                ///< of one optimizer step, all processes together
  DeepSpeedValue<int64_t> train_micro_batch_size_per_gpu;  ///< of one process and one backward pass
  DeepSpeedValue<int64_t> gradient_accumulation_steps;     ///< [1]
  DeepSpeedValue<double> gradient_clipping;                ///< largest norm; 0: none [0]
  DeepSpeedValue<std::string> communication_data_type;     ///< of gradients on the wire [the model's]
  DeepSpeedValue<bool> prescale_gradients;                 ///< divide before summing [false]
  DeepSpeedValue<int64_t> steps_per_print;                 ///< [10]
  DeepSpeedValue<bool> zero_allow_untested_optimizer;      ///< [false]
  DeepSpeedZero zero;
  DeepSpeedFp16 fp16;
  DeepSpeedBf16 bf16;
  DeepSpeedComponent optimizer;
  DeepSpeedComponent scheduler;

  std::vector<std::string> autos;   ///< dotted keys that are "auto", in the file's order
  std::vector<std::string> unused;  ///< DeepSpeed's keys that are there and have no part here ("aio")
  std::map<std::string, ValueOrigin, std::less<>> origins;  ///< where each key stands
  std::string file;                                         ///< path that was read

  /// zero.stage where it is a number; 0 when it is not given. Nothing for "auto" and for a
  /// value that could not be used.
  std::optional<int64_t> stage() const;
};

/// Sizes of batches that fit one another: train = micro x accumulation x processes.
struct DeepSpeedBatch {
  int64_t train = 0;
  int64_t micro = 0;
  int64_t accumulation = 1;

  bool operator==(const DeepSpeedBatch&) const = default;
};

/// The batch sizes of a job with `num_processes`, worked out from those that the file gives. Nothing where
/// they depend on an "auto" or on the program's loader, or where no whole numbers fit: the problems of
/// reading then say so. A gradient_accumulation_steps that is not given is 1, as in HF Accelerate.
std::optional<DeepSpeedBatch> derive_batch(const DeepSpeedFile& file, int64_t num_processes);

struct InspectedDeepSpeedFile {
  DeepSpeedFile file;             ///< values that could not be used are not given
  std::vector<Problem> problems;  ///< all of them, in the file's order
};

/// What is known when a DeepSpeed file is read.
struct DeepSpeedReadOptions {
  /// Processes of the whole job; nothing: unknown, and batch sizes that tie the file to some are a warning.
  std::optional<int64_t> num_processes = std::nullopt;
  bool allow_unknown_keys = false;  ///< slips of the pen in keys become warnings
};

/// Reads a file and checks it by itself. A key that looks like a slip of a known one is an error; any other
/// unknown key a warning, since DeepSpeed goes on without it.
/// @throws ConfigError only where there is nothing to look at: no file, not readable, not JSON.
InspectedDeepSpeedFile inspect_deepspeed_file(const std::filesystem::path& path,
                                              const DeepSpeedReadOptions& options = {});

/// As inspect_deepspeed_file().
/// @throws ConfigError also when there are errors, listing all of them.
DeepSpeedFile read_deepspeed_file(const std::filesystem::path& path,
                                  const DeepSpeedReadOptions& options = {});

/// True if the path is a regular file with JSON of DeepSpeed's kind rather than an accelerate configuration.
/// False for whatever can't be read.
bool is_deepspeed_file(const std::filesystem::path& path);

}  // namespace accelerate
