#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/config/machine.h"
#include "accelerate/config/problem.h"

namespace accelerate {

/// How a job is spread. The order is that of the schema's row `distributed_type`.
enum class DistributedType {
  kNo,        ///< one process
  kMultiCpu,  ///< data parallel, one process a rank on CPUs
  kMultiGpu,  ///< data parallel, one CUDA device a rank
  kFsdp,
  kDeepSpeed,
  kMegatronLm,
  kXla,
  kMultiNpu,
  kMultiMlu,
  kMultiSdaa,
  kMultiMusa,
  kMultiXpu,
  kMultiHpu,
  kMultiNeuron,
};

/// The order is that of the schema's row `mixed_precision`.
enum class MixedPrecision { kNo, kFp16, kBf16, kFp8 };

/// "MULTI_CPU", as in files.
std::string_view to_string(DistributedType type);
/// "bf16", as in files.
std::string_view to_string(MixedPrecision precision);

/// A value, or the word "auto" in its place (DeepSpeed).
template <class T>
struct OrAuto {
  std::optional<T> value;  ///< nothing means "auto"
  bool is_auto() const { return !value.has_value(); }
  bool operator==(const OrAuto&) const = default;
};

// The blocks hold every key of HF Accelerate's. A member is the key without the block's prefix; nothing means
// "not given". What each means, its values and its default is in the schema (schema_rows.cpp), or `accel
// config keys`.

struct FsdpConfig {
  std::optional<int64_t> version;
  std::optional<std::string> sharding_strategy;
  std::optional<std::string> reshard_after_forward;
  std::optional<bool> offload_params;
  std::optional<int64_t> min_num_params;
  std::optional<std::string> auto_wrap_policy;
  std::optional<std::string> transformer_layer_cls_to_wrap;
  std::optional<std::string> backward_prefetch;
  std::optional<std::string> state_dict_type;
  std::optional<bool> forward_prefetch;
  std::optional<bool> use_orig_params;
  std::optional<bool> sync_module_states;
  std::optional<bool> cpu_ram_efficient_loading;
  std::optional<bool> activation_checkpointing;
  std::optional<bool> activation_checkpointing_offload;
  std::optional<std::string> ignored_modules;
};

struct DeepSpeedConfig {
  std::optional<std::string> config_file;
  std::optional<int64_t> zero_stage;
  std::optional<OrAuto<int64_t>> gradient_accumulation_steps;
  std::optional<OrAuto<double>> gradient_clipping;
  std::optional<std::string> offload_optimizer_device;
  std::optional<std::string> offload_param_device;
  std::optional<std::string> offload_optimizer_nvme_path;
  std::optional<std::string> offload_param_nvme_path;
  std::optional<bool> zero3_init_flag;
  std::optional<OrAuto<bool>> zero3_save_16bit_model;
  std::optional<std::string> hostfile;
  std::optional<std::string> exclusion_filter;
  std::optional<std::string> inclusion_filter;
  std::optional<std::string> multinode_launcher;
  std::optional<std::string> moe_layer_cls_names;
};

struct MegatronConfig {
  std::optional<int64_t> tp_degree;
  std::optional<int64_t> pp_degree;
  std::optional<int64_t> num_micro_batches;
  std::optional<bool> sequence_parallelism;
  std::optional<bool> recompute_activations;
  std::optional<bool> use_distributed_optimizer;
  std::optional<double> gradient_clipping;
  std::optional<bool> use_custom_fsdp;
  std::optional<bool> no_load_optim;
  std::optional<bool> no_save_optim;
  std::optional<bool> eod_mask_loss;
  std::optional<bool> overlap_cpu_optimizer_d2h_h2d;
  std::optional<bool> optimizer_cpu_offload;
  std::optional<bool> use_precision_aware_optimizer;
  std::optional<int64_t> decoder_last_pipeline_num_layers;
  std::optional<std::string> recompute_granularity;
  std::optional<std::string> recompute_method;
  std::optional<int64_t> recompute_num_layers;
  std::optional<bool> attention_backend;
  std::optional<int64_t> expert_model_parallel_size;
  std::optional<int64_t> context_parallel_size;
  std::optional<double> attention_dropout;
  std::optional<double> hidden_dropout;
  std::optional<bool> attention_softmax_in_fp32;
  std::optional<int64_t> expert_tensor_parallel_size;
  std::optional<bool> calculate_per_token_loss;
  std::optional<bool> use_rotary_position_embeddings;
};

struct ParallelismConfig {
  std::optional<int64_t> dp_replicate_size;
  std::optional<int64_t> dp_shard_size;
  std::optional<int64_t> tp_size;
  std::optional<int64_t> cp_size;
  std::optional<int64_t> sp_size;
  std::optional<std::string> cp_backend;
  std::optional<std::string> sp_backend;
  std::optional<std::string> cp_comm_strategy;
  std::optional<int64_t> sp_seq_length;
  std::optional<bool> sp_seq_length_is_variable;
  std::optional<std::string> sp_attn_implementation;
};

struct MpirunConfig {
  std::optional<std::string> hostfile;
};

struct DynamoConfig {
  std::optional<std::string> backend;
  std::optional<std::string> mode;
  std::optional<bool> use_fullgraph;
  std::optional<bool> use_dynamic;
  std::optional<bool> use_regional_compilation;
};

struct Fp8Config {
  std::optional<std::string> backend;
  std::optional<bool> use_autocast_during_eval;
  std::optional<int64_t> margin;
  std::optional<int64_t> interval;
  std::optional<std::string> format;
  std::optional<int64_t> amax_history_len;
  std::optional<std::string> amax_compute_algo;
  std::optional<std::string> override_linear_precision;
  std::optional<bool> use_mxfp8_block_scaling;
  std::optional<std::string> opt_level;
  std::optional<bool> enable_fsdp_float8_all_gather;
  std::optional<bool> pad_inner_dim;
};

/// Keys that only ever concerned TPU pods; read, kept and written back.
struct TpuConfig {
  std::string main_training_function = "main";
  bool downcast_bf16 = false;
  std::optional<std::string> name;
  std::optional<std::string> zone;
  std::optional<std::string> command_file;
  std::optional<bool> use_cluster;
  std::optional<bool> use_sudo;
  std::optional<std::vector<std::string>> commands;
  std::optional<std::vector<std::string>> vm;
  std::optional<std::vector<std::string>> env;
};

/// A job's configuration: HF Accelerate's cluster config with all its keys, and a few of ours. Made by
/// load_config(); a plain value, safe to copy.
struct Config {
  std::string compute_environment = "LOCAL_MACHINE";
  DistributedType distributed_type = DistributedType::kNo;
  MixedPrecision mixed_precision = MixedPrecision::kNo;
  bool use_cpu = false;
  bool debug = false;
  /// Processes of the whole job, over all machines. Nothing: not given, and a launch must be told.
  std::optional<int64_t> num_processes;
  int64_t num_machines = 1;
  int64_t machine_rank = 0;
  /// Devices of each machine that the job may use ("0", "GPU-1a2b"); nothing means all.
  std::optional<std::vector<std::string>> gpu_ids;
  std::optional<std::string> main_process_ip;
  std::optional<int64_t> main_process_port;  ///< 0: any free one (one machine only)
  std::string rdzv_backend = "static";
  bool same_network = false;
  bool enable_cpu_affinity = false;

  // Keys of ours, which HF Accelerate has as arguments only; written to a file only when given.
  int64_t gradient_accumulation_steps = 1;
  bool step_scheduler_with_optimizer = true;
  /// "per_optimizer_step" (one scheduler step each), or "per_process": HF Accelerate's rule, num_processes
  /// steps each.
  std::string scheduler_rule = "per_optimizer_step";

  FsdpConfig fsdp;
  DeepSpeedConfig deepspeed;
  MegatronConfig megatron;
  ParallelismConfig parallelism;
  MpirunConfig mpirun;
  DynamoConfig dynamo;
  Fp8Config fp8;
  TpuConfig tpu;

  /// Where the value of `key` (dotted path, as in the schema) came from; kDefault for one that nobody gave.
  ValueOrigin origin_of(std::string_view key) const;
  bool given(std::string_view key) const { return origin_of(key).origin != Origin::kDefault; }

  std::map<std::string, ValueOrigin, std::less<>> origins;  ///< of all values that are no default
  std::map<std::string, ValueOrigin, std::less<>> nulls;    ///< keys that the file sets to null
  std::string file;                                         ///< path that was read, or empty
  std::vector<Problem> load_warnings;  ///< old spellings and the like; validate() repeats them
  bool allow_unknown_keys = false;     ///< as it was loaded; holds for the DeepSpeed file that it names too
  MachineFacts machine;                ///< the machine that it was loaded for
};

/// True if the ranks are to be started through mpirun.
inline bool uses_mpirun(const Config& config) {
  return config.distributed_type == DistributedType::kMultiCpu &&
         (config.mpirun.hostfile || config.given("mpirun_config"));
}

}  // namespace accelerate
