// The only file that sees c10d's Reducer.
#include "accelerate/strategy/ddp.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/embedding.h>

#include <limits>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/optim/graph.h"
#include "accelerate/strategy/comm_hooks_internal.h"
#include "accelerate/strategy/model_check.h"
#include "accelerate/strategy/sync_batchnorm.h"

namespace accelerate {
namespace {

constexpr const char* kBackward = "backward (all_reduce of gradients)";
constexpr size_t kBroadcastBytes = 250 * 1024 * 1024;  // as Python's DDP

// Opens some of the reducer's states to us.
class Reducer final : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;
  /// A backward has begun to reduce and has not finished.
  bool unfinished() const { return require_finalize_; }
  /// rebuild_buckets() will make new ones, as on all ranks.
  bool about_to_rebuild() const { return should_rebuild_buckets() && !rebuilt_params_.empty(); }
  /// Forgets an announced backward: gradients of the next one stay local.
  void cancel() { expect_autograd_hooks_ = false; }
};

std::vector<at::Tensor> sparse_weights(const torch::nn::Module& module) {
  std::vector<at::Tensor> out;
  for (const auto& child : module.modules()) {
    if (auto* embedding = child->as<torch::nn::EmbeddingImpl>(); embedding && embedding->options.sparse()) {
      out.push_back(embedding->weight);
    }
    if (auto* bag = child->as<torch::nn::EmbeddingBagImpl>(); bag && bag->options.sparse())
      out.push_back(bag->weight);
  }
  return out;
}

class DdpModel final : public ModelStrategy {
 public:
  DdpModel(torch::nn::Module& module, std::shared_ptr<Communicator> communicator, const DdpOptions& options)
      : communicator_(std::move(communicator)), options_(options) {
    detail::check_same_model(*communicator_, module);
    for (const auto& entry : module.named_parameters()) {
      if (entry.value().requires_grad()) parameters_.emplace_back(entry.key(), entry.value());
    }
    for (const auto& buffer : module.buffers()) {
      if (buffer.defined()) buffers_.push_back(buffer);
    }
    std::vector<at::Tensor> states = module.parameters();
    states.insert(states.end(), buffers_.begin(), buffers_.end());
    broadcast(states);
    if (options_.sync_batchnorm) sync_batchnorm_ = convert_sync_batchnorm(module, communicator_);
    if (!parameters_.empty()) build_reducer(sparse_weights(module));
  }

  void before_forward() override {
    if (sync_batchnorm_) sync_batchnorm_->refresh();
    if (!will_reduce()) return;
    if (!announced_) tell_training(true);
    guarded("before forward", [&] {
      if (buffers_stale_) broadcast_buffers();  // the last backward went past the Accelerator
      reducer_->prepare_for_forward();
      rebuild_buckets();
    });
  }

  void after_forward(std::span<const at::Tensor> outputs) override {
    if (!will_reduce()) return;
    announce_backward(outputs);
    buffers_stale_ = true;
  }

  void before_backward(const at::Tensor& loss) override {
    if (reducer_ == nullptr) return;
    if (reduces()) communicator_->check_point(kBackward);
    if (!reduces()) {
      reducer_->cancel();
    } else if (!announced_ && uses_model(loss)) {
      tell_training(true);
      // As before a forward: the order that the last backward taught is used before the next one adds to it.
      guarded("preparing backward", [&] {
        reducer_->prepare_for_forward();
        rebuild_buckets();
      });
      announce_backward({&loss, 1});
    }
  }

  void after_backward(const at::Tensor& loss) override {
    if (reducer_ == nullptr || !reduces() || !announced_) return;
    announced_ = false;
    if (reducer_->unfinished()) report_unused(loss);
    guarded("broadcasting buffers", [&] { broadcast_buffers(); });
  }

  void set_gradient_sync(bool on) override {
    // A static graph's reducer counts the gradients of every backward, also of those that stay local, and
    // then waits for as many: the ranks' weights would drift apart without a word.
    if (!on && options_.static_graph && reducer_ != nullptr) {
      throw ConfigError({.what = "static_graph (DdpOptions) with gradients that stay on this rank",
                         .hint = "Leave static_graph off where you accumulate gradients or use no_sync.",
                         .rank = communicator_->rank()});
    }
    sync_ = on;
  }

  void set_local_training(bool on) override { local_ = on; }

  void begin_uneven() override {
    const bool several = communicator_->size() > 1 && reducer_ != nullptr;
    if (several && options_.static_graph) {
      throw ConfigError({.what = "static_graph (DdpOptions) with join_uneven_inputs",
                         .hint = "Leave static_graph off.",
                         .rank = communicator_->rank()});
    }
    if (several && sync_batchnorm_ && sync_batchnorm_->layers() > 0) {
      throw ConfigError({.what = "sync_batchnorm (DdpOptions) with join_uneven_inputs",
                         .hint = "A rank without a batch has no part in the others' statistics: leave "
                                 "sync_batchnorm off, or train with even batches.",
                         .rank = communicator_->rank()});
    }
    uneven_ = several;
    source_rank_ = 0;
    some_trained_ = false;
  }

  bool shadow_step() override {
    if (!uneven_ || !tell_training(false)) return false;
    guarded("taking part in the other ranks' step", [&] {
      rebuild_buckets();
      communicator_->check_point(kBackward);
      const auto group = communicator_->process_group();
      std::vector<c10d::GradBucket> zeros = reducer_->get_grad_buckets(/*return_zero_tensors=*/true);
      std::vector<c10::intrusive_ptr<c10::ivalue::Future>> reduced;
      reduced.reserve(zeros.size());
      for (c10d::GradBucket& bucket : zeros) reduced.push_back(reducer_->run_comm_hook(bucket));
      for (const auto& result : reduced) result->waitAndThrow();
      if (options_.find_unused_parameters) {
        std::vector<at::Tensor> used = {at::zeros_like(reducer_->get_local_used_map_on_device())};
        group->allreduce(used)->wait();
      }
      reducer_->push_rebuilt_params_for_all_indices();
      broadcast_buffers();
    });
    return true;
  }

  int end_uneven() override {
    if (!std::exchange(uneven_, false) || !some_trained_) return -1;
    std::vector<at::Tensor> states = buffers_;
    for (const auto& [name, parameter] : parameters_) states.push_back(parameter);
    broadcast(states, source_rank_);
    return source_rank_;
  }

 private:
  bool reduces() const { return sync_ && !local_; }
  bool will_reduce() const { return reducer_ != nullptr && reduces() && at::GradMode::is_enabled(); }

  // Only asked when no forward through the handle came before: one model's backward must not disturb
  // another's.
  bool uses_model(const at::Tensor& loss) const {
    return detail::unreached_parameters(loss, parameters_).size() < parameters_.size();
  }

  // Says whether this rank still trains; true if any rank does. See Note [Uneven inputs].
  bool tell_training(bool training) {
    if (!uneven_) return true;
    at::Tensor flags = at::zeros({communicator_->size()}, at::TensorOptions(at::kLong));
    flags[communicator_->rank()] = training ? 1 : 0;
    communicator_->all_reduce(flags);
    const int64_t* trains = flags.const_data_ptr<int64_t>();
    const int64_t* first = std::find(trains, trains + flags.numel(), 1);
    if (first == trains + flags.numel()) return false;
    source_rank_ = static_cast<int>(first - trains);
    some_trained_ = true;
    return true;
  }

  template <class F>
  void guarded(const char* what, const F& action) {
    try {
      action();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      if (text.find("Expected to have finished reduction") != std::string::npos) {
        throw ConfigError(
            {.what = "parameters got no gradient in the last backward",
             .hint = "Call accelerator.backward(loss) instead of loss.backward() to learn their names, "
                     "or set find_unused_parameters in DdpOptions.",
             .rank = communicator_->rank()});
      }
      communicator_->rethrow(what);
    }
  }

  // Buckets that last lie where the back end reduces them in place, if it has such memory.
  void rebuild_buckets() {
    const auto memory = reducer_->about_to_rebuild() ? communicator_->bucket_memory(bucket_bytes_) : nullptr;
    reducer_->rebuild_buckets();
  }

  void announce_backward(std::span<const at::Tensor> roots) {
    guarded("preparing backward", [&] {
      const bool search = options_.find_unused_parameters && !options_.static_graph;
      reducer_->prepare_for_backward(search ? std::vector<at::Tensor>(roots.begin(), roots.end())
                                            : std::vector<at::Tensor>());
    });
    announced_ = true;
    if (options_.static_graph && !static_graph_recorded_) delay_first_reduction(roots);
  }

  // The first step of a static graph only records how often each gradient arrives, and reduces at the end of
  // backward.
  void delay_first_reduction(std::span<const at::Tensor> roots) {
    static_graph_recorded_ = true;
    const auto queued = std::make_shared<bool>(false);
    for (const at::Tensor& root : roots) {
      if (!root.requires_grad()) continue;
      root.register_hook([queued, reducer = std::weak_ptr<Reducer>(reducer_)](const at::Tensor&) {
        if (std::exchange(*queued, true)) return;
        torch::autograd::Engine::get_default_engine().queue_callback([reducer] {
          if (const auto alive = reducer.lock()) alive->delay_all_reduce();
        });
      });
    }
  }

  void build_reducer(const std::vector<at::Tensor>& sparse) {
    std::vector<at::Tensor> tensors;
    std::vector<bool> expect_sparse;
    std::unordered_map<size_t, std::string> names;
    for (const auto& [name, parameter] : parameters_) {
      names[tensors.size()] = name;
      tensors.push_back(parameter);
      expect_sparse.push_back(
          std::any_of(sparse.begin(), sparse.end(),
                      [&, &p = parameter](const at::Tensor& weight) { return weight.is_same(p); }));
      // Each may get a bucket of its own; the reducer's notes on each are small.
      constexpr size_t kRounding = 128;
      if (parameter.device().is_cpu() && !expect_sparse.back())
        bucket_bytes_ += parameter.nbytes() + kRounding;
    }
    auto hook = detail::make_comm_hook(options_);
    if (hook) check_can_travel(expect_sparse);
    const auto cap_bytes = static_cast<size_t>(options_.bucket_cap_mb * 1024 * 1024);
    const size_t first_bytes = std::min<size_t>(c10d::kDefaultFirstBucketBytes, cap_bytes);
    // One bucket at first where the arrival order will be learnt from the first backward, as Python's DDP
    // does.
    const bool rebuilt_later = options_.static_graph || !options_.find_unused_parameters;
    const std::vector<size_t> limits = rebuilt_later ? std::vector<size_t>{std::numeric_limits<size_t>::max()}
                                                     : std::vector<size_t>{first_bytes, cap_bytes};
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(tensors, limits, expect_sparse));
    std::reverse(buckets.begin(), buckets.end());  // gradients arrive last layer first
    const auto memory = rebuilt_later ? nullptr : communicator_->bucket_memory(bucket_bytes_);
    reducer_ = std::make_shared<Reducer>(
        std::move(tensors), std::move(buckets), communicator_->process_group(), std::move(expect_sparse),
        static_cast<int64_t>(cap_bytes), options_.find_unused_parameters, options_.gradient_as_bucket_view,
        std::move(names), static_cast<int64_t>(first_bytes),
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>());
    // The reducer asks it for its own bookkeeping, without checking that there is one.
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    if (hook) reducer_->register_comm_hook(detail::as_c10d_hook(std::move(hook), communicator_));
    if (options_.static_graph) reducer_->set_static_graph();
  }

  void check_can_travel(const std::vector<bool>& sparse) const {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const auto& [name, parameter] = parameters_[i];
      if (!sparse[i] && at::isFloatingType(parameter.scalar_type())) continue;
      throw ConfigError({.what = concat("a communication hook (DdpOptions) for the gradient of ", name),
                         .expected = "dense real numbers",
                         .got = sparse[i] ? "a sparse gradient" : c10::toString(parameter.scalar_type()),
                         .hint = "Leave comm_hook off for this model.",
                         .rank = communicator_->rank()});
    }
  }

  void broadcast(const std::vector<at::Tensor>& tensors, int root = 0) {
    if (tensors.empty()) return;
    const at::NoGradGuard no_grad;
    guarded("broadcasting the model", [&] {
      std::vector<at::Tensor> detached;
      for (const at::Tensor& tensor : tensors) detached.push_back(tensor.detach());
      c10d::broadcast_coalesced(communicator_->process_group(), detached, kBroadcastBytes, root);
    });
  }

  void broadcast_buffers() {
    buffers_stale_ = false;
    if (options_.broadcast_buffers) broadcast(buffers_, uneven_ ? source_rank_ : 0);
  }

  [[noreturn]] void report_unused(const at::Tensor& loss) {
    const std::vector<std::string> names = detail::unreached_parameters(loss, parameters_);
    throw ConfigError(
        {.what = concat("the loss does not use these parameters, so that they got no gradient: ",
                        join(names, ", ")),
         .hint = "Use them, freeze them (requires_grad_(false)) before prepare(), or set "
                 "find_unused_parameters in DdpOptions.",
         .rank = communicator_->rank()});
  }

  std::shared_ptr<Communicator> communicator_;
  DdpOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;  // the trained ones
  std::vector<at::Tensor> buffers_;
  std::shared_ptr<Reducer> reducer_;  // null for a model without trained parameters
  std::shared_ptr<c10d::Logger> logger_;
  std::unique_ptr<SyncBatchNorm> sync_batchnorm_;  // null without DdpOptions::sync_batchnorm
  size_t bucket_bytes_ = 4096;                     // of all buckets together
  bool sync_ = true;
  bool local_ = false;      // ranks train by themselves for a while
  bool announced_ = false;  // the reducer expects a backward
  bool buffers_stale_ = false;
  bool static_graph_recorded_ = false;
  bool uneven_ = false;        // between begin_uneven() and end_uneven()
  int source_rank_ = 0;        // the first rank that trained in the last step
  bool some_trained_ = false;  // since begin_uneven()
};

}  // namespace

DdpStrategy::DdpStrategy(const ProcessContext& context, const DdpOptions& options)
    : communicator_(context.communicator), options_(options) {
  if (options.bucket_cap_mb <= 0) {
    throw ConfigError({.what = "bucket_cap_mb",
                       .expected = "a positive number of MiB",
                       .got = std::to_string(options.bucket_cap_mb)});
  }
}

std::unique_ptr<ModelStrategy> DdpStrategy::prepare_model(torch::nn::Module& module) {
  return std::make_unique<DdpModel>(module, communicator_, options_);
}

}  // namespace accelerate
