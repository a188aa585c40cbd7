#include "accelerate/config/deepspeed_rows.h"

#include <algorithm>

#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

using enum ValueType;

constexpr std::string_view kDevices = "none|cpu|nvme";

// clang-format off
#define SLOT(member) +[](DeepSpeedFile& f) -> Slot { return &f.member; }

// The keys that have a part here. A new one is a row and a member in deepspeed_file.h. The limits of batch sizes
// keep their products within 64 bits.
constexpr DeepSpeedRow kRows[] = {
    {.name = "train_batch_size", .type = kInt, .slot = SLOT(train_batch_size),
     .allowed = "1..1000000000000"},
    {.name = "train_micro_batch_size_per_gpu", .type = kInt, .slot = SLOT(train_micro_batch_size_per_gpu),
     .allowed = "1..1000000"},
    {.name = "gradient_accumulation_steps", .type = kInt, .slot = SLOT(gradient_accumulation_steps),
     .allowed = "1..1000000"},
    {.name = "gradient_clipping", .type = kNumber, .slot = SLOT(gradient_clipping), .allowed = "0.."},
    {.name = "communication_data_type", .type = kWord, .slot = SLOT(communication_data_type),
     .allowed = "fp16|bf16|fp32|bfp16"},
    {.name = "prescale_gradients", .type = kBool, .slot = SLOT(prescale_gradients)},
    {.name = "steps_per_print", .type = kInt, .slot = SLOT(steps_per_print), .allowed = "0.."},
    {.name = "zero_allow_untested_optimizer", .type = kBool, .slot = SLOT(zero_allow_untested_optimizer)},

    {.name = "fp16", .type = kBlock},
    {.name = "fp16.enabled", .type = kBool, .slot = SLOT(fp16.enabled)},
    {.name = "fp16.auto_cast", .type = kBool, .slot = SLOT(fp16.auto_cast)},
    {.name = "fp16.loss_scale", .type = kNumber, .slot = SLOT(fp16.loss_scale), .allowed = "0.."},
    {.name = "fp16.initial_scale_power", .type = kInt, .slot = SLOT(fp16.initial_scale_power),
     .allowed = "0..64"},
    {.name = "fp16.loss_scale_window", .type = kInt, .slot = SLOT(fp16.loss_scale_window), .allowed = "1.."},
    {.name = "fp16.hysteresis", .type = kInt, .slot = SLOT(fp16.hysteresis), .allowed = "0.."},
    {.name = "fp16.consecutive_hysteresis", .type = kBool, .slot = SLOT(fp16.consecutive_hysteresis)},
    {.name = "fp16.min_loss_scale", .type = kNumber, .slot = SLOT(fp16.min_loss_scale), .allowed = "0.."},

    {.name = "bf16", .type = kBlock, .old_names = "bfloat16"},
    {.name = "bf16.enabled", .type = kBool, .slot = SLOT(bf16.enabled)},
    {.name = "bf16.immediate_grad_update", .type = kBool, .slot = SLOT(bf16.immediate_grad_update)},

    {.name = "optimizer", .type = kBlock},
    {.name = "optimizer.type", .type = kText, .slot = SLOT(optimizer.type)},
    {.name = "optimizer.params", .type = kBlock},
    {.name = "scheduler", .type = kBlock},
    {.name = "scheduler.type", .type = kText, .slot = SLOT(scheduler.type)},
    {.name = "scheduler.params", .type = kBlock},

    {.name = "zero_optimization", .type = kBlock},
    {.name = "zero_optimization.stage", .type = kInt, .slot = SLOT(zero.stage), .allowed = "0..3"},
    {.name = "zero_optimization.offload_optimizer", .type = kBlock},
    {.name = "zero_optimization.offload_optimizer.device", .type = kWord,
     .slot = SLOT(zero.offload_optimizer.device), .allowed = kDevices},
    {.name = "zero_optimization.offload_optimizer.nvme_path", .slot = SLOT(zero.offload_optimizer.nvme_path)},
    {.name = "zero_optimization.offload_optimizer.pin_memory", .type = kBool,
     .slot = SLOT(zero.offload_optimizer.pin_memory)},
    {.name = "zero_optimization.offload_optimizer.buffer_count", .type = kInt,
     .slot = SLOT(zero.offload_optimizer.buffer_count), .allowed = "0.."},
    {.name = "zero_optimization.offload_optimizer.ratio", .type = kNumber,
     .slot = SLOT(zero.offload_optimizer.ratio), .allowed = "0..1"},
    {.name = "zero_optimization.offload_optimizer.pipeline_read", .type = kBool,
     .slot = SLOT(zero.offload_optimizer.pipeline_read)},
    {.name = "zero_optimization.offload_optimizer.pipeline_write", .type = kBool,
     .slot = SLOT(zero.offload_optimizer.pipeline_write)},
    {.name = "zero_optimization.offload_param", .type = kBlock},
    {.name = "zero_optimization.offload_param.device", .type = kWord, .slot = SLOT(zero.offload_param.device),
     .allowed = kDevices},
    {.name = "zero_optimization.offload_param.nvme_path", .slot = SLOT(zero.offload_param.nvme_path)},
    {.name = "zero_optimization.offload_param.pin_memory", .type = kBool,
     .slot = SLOT(zero.offload_param.pin_memory)},
    {.name = "zero_optimization.offload_param.buffer_count", .type = kInt,
     .slot = SLOT(zero.offload_param.buffer_count), .allowed = "0.."},
    {.name = "zero_optimization.offload_param.buffer_size", .type = kInt,
     .slot = SLOT(zero.offload_param.buffer_size), .allowed = "0.."},
    {.name = "zero_optimization.offload_param.max_in_cpu", .type = kInt,
     .slot = SLOT(zero.offload_param.max_in_cpu), .allowed = "0.."},
    {.name = "zero_optimization.contiguous_gradients", .type = kBool, .slot = SLOT(zero.contiguous_gradients)},
    {.name = "zero_optimization.overlap_comm", .type = kBool, .slot = SLOT(zero.overlap_comm)},
    {.name = "zero_optimization.reduce_scatter", .type = kBool, .slot = SLOT(zero.reduce_scatter)},
    {.name = "zero_optimization.reduce_bucket_size", .type = kInt, .slot = SLOT(zero.reduce_bucket_size),
     .allowed = "0.."},
    {.name = "zero_optimization.allgather_partitions", .type = kBool,
     .slot = SLOT(zero.allgather_partitions)},
    {.name = "zero_optimization.allgather_bucket_size", .type = kInt,
     .slot = SLOT(zero.allgather_bucket_size), .allowed = "0.."},
    {.name = "zero_optimization.sub_group_size", .type = kInt, .slot = SLOT(zero.sub_group_size),
     .allowed = "0.."},
    {.name = "zero_optimization.round_robin_gradients", .type = kBool,
     .slot = SLOT(zero.round_robin_gradients)},
    {.name = "zero_optimization.ignore_unused_parameters", .type = kBool,
     .slot = SLOT(zero.ignore_unused_parameters)},
    {.name = "zero_optimization.stage3_prefetch_bucket_size", .type = kInt,
     .slot = SLOT(zero.prefetch_bucket_size), .allowed = "0..", .old_names = "prefetch_bucket_size"},
    {.name = "zero_optimization.stage3_param_persistence_threshold", .type = kInt,
     .slot = SLOT(zero.param_persistence_threshold), .allowed = "0..",
     .old_names = "param_persistence_threshold"},
    {.name = "zero_optimization.stage3_model_persistence_threshold", .type = kInt,
     .slot = SLOT(zero.model_persistence_threshold), .allowed = "0..",
     .old_names = "model_persistence_threshold"},
    {.name = "zero_optimization.stage3_max_live_parameters", .type = kInt,
     .slot = SLOT(zero.max_live_parameters), .allowed = "0..", .old_names = "max_live_parameters"},
    {.name = "zero_optimization.stage3_max_reuse_distance", .type = kInt,
     .slot = SLOT(zero.max_reuse_distance), .allowed = "0..", .old_names = "max_reuse_distance"},
    {.name = "zero_optimization.stage3_gather_16bit_weights_on_model_save", .type = kBool,
     .slot = SLOT(zero.gather_16bit_weights_on_model_save),
     .old_names = "gather_16bit_weights_on_model_save|stage3_gather_fp16_weights_on_model_save|"
                  "gather_fp16_weights_on_model_save"},
};
#undef SLOT
// clang-format on

// DeepSpeed's other keys, from deepspeed/runtime/config.py, runtime/zero/config.py,
// runtime/zero/offload_config.py and runtime/precision_config.py.
struct UnusedKeys {
  std::string_view section;
  std::string_view names;
};
constexpr UnusedKeys kUnused[] = {
    {"",
     "activation_checkpointing|aio|amp|autotuning|checkpoint|comet|comms_config|comms_logger|compile|"
     "compression_training|csv_monitor|curriculum_learning|data_efficiency|data_types|dataloader_drop_last|"
     "disable_allgather|dump_state|eigenvalue|elasticity|expert_parallel|flops_profiler|fp32_allreduce|"
     "gradient_accumulation_dtype|gradient_predivide_factor|graph_harvesting|hybrid_engine|"
     "memory_breakdown|monitor_config|nebula|pipeline|pld|progressive_layer_drop|quantize_training|"
     "seq_parallel_communication_data_type|sequence_parallel_size|sparse_attention|sparse_gradients|"
     "tensor_parallel|tensorboard|timers|torch_autocast|torch_fp16|use_data_before_expert_parallelism|"
     "wall_clock_breakdown|wandb|weight_quantization|zero_force_ds_cpu_optimizer|"
     "use_node_local_storage|load_universal_checkpoint|inference|moe|_comment|comment"},
    {"fp16", "fp16_master_weights_and_grads|fp16_master_weights_and_gradients"},
    // Keys of fp16 too: many files have a copy of that section here, and bf16 has no loss scale to set.
    {"bf16",
     "bf16_master_weights_and_grads|bf16_optimizer_states|check_grad_overflow|auto_cast|loss_scale|"
     "initial_scale_power|loss_scale_window|hysteresis|consecutive_hysteresis|min_loss_scale"},
    {"optimizer", "legacy_fusion"},
    {"zero_optimization",
     "allgather_sequential|cpu_offload_params|cpu_offload_use_pin_memory|elastic_checkpoint|"
     "find_unused_parameters|legacy_stage1|load_from_fp32_weights|log_trace_cache_warnings|"
     "memory_efficient_linear|mics_hierarchical_params_gather|mics_shard_size|module_granularity_threshold|"
     "stage3_module_granularity_threshold|override_module_apply|pipeline_loading_checkpoint|"
     "save_muon_momentum_buffer_in_memory|stage3_use_all_reduce_for_fetch_params|"
     "use_all_reduce_for_fetch_params|use_multi_rank_bucket_allreduce|zenflow|zero_hpz_partition_size|"
     "zero_quantized_gradients|zero_quantized_nontrainable_weights|zero_quantized_weights|"
     "zeropp_loco_param|enable_sanity_checks|grad_hooks"},
    {"zero_optimization.offload_optimizer",
     "fast_init|super_offload|cpuadam_cores_perc|buffer_size|max_in_cpu"},
    {"zero_optimization.offload_param", "fast_init|pipeline_read|pipeline_write|ratio"},
};

bool has_word(std::string_view column, std::string_view word) {
  const auto words = words_of(column);
  return std::find(words.begin(), words.end(), word) != words.end();
}

}  // namespace

std::span<const DeepSpeedRow> deepspeed_rows() {
  return kRows;
}

const DeepSpeedRow* find_deepspeed_key(std::string_view section, std::string_view name) {
  for (const DeepSpeedRow& row : kRows) {
    if (row.section() == section && (row.leaf() == name || has_word(row.old_names, name))) return &row;
  }
  return nullptr;
}

bool is_unused_deepspeed_key(std::string_view section, std::string_view name) {
  for (const UnusedKeys& keys : kUnused) {
    if (keys.section == section && has_word(keys.names, name)) return true;
  }
  return false;
}

std::optional<std::string> nearest_deepspeed_key(std::string_view section, std::string_view name) {
  std::vector<std::string> candidates;
  for (const DeepSpeedRow& row : kRows) {
    if (row.section() == section) candidates.emplace_back(row.leaf());
  }
  for (const UnusedKeys& keys : kUnused) {
    if (keys.section != section) continue;
    for (std::string& word : words_of(keys.names)) candidates.push_back(std::move(word));
  }
  if (auto found = nearest_name(name, candidates)) return found;
  // In the wrong section: `stage` at the top, `train_batch_size` below zero_optimization.
  for (const DeepSpeedRow& row : kRows) {
    const bool telling = row.leaf() != "type" && row.leaf() != "params" && row.leaf() != "enabled";
    if (telling && row.leaf() == name) return std::string(row.name);
  }
  return std::nullopt;
}

}  // namespace accelerate::detail
