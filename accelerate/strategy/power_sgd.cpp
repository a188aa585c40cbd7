#include "accelerate/strategy/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/strategy/power_sgd_seeds.h"

namespace accelerate {
namespace {

// Columns of each [rows, columns] matrix of the batch become orthonormal, in place.
void gram_schmidt(const at::Tensor& matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  for (int64_t i = 0; i < columns; ++i) {
    at::Tensor column = matrices.narrow(2, i, 1);
    const at::Tensor norm = at::linalg_vector_norm(column, 2, at::IntArrayRef{1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm : norm + epsilon);
    if (i + 1 < columns) {
      at::Tensor rest = matrices.narrow(2, i + 1, columns - i - 1);
      rest.sub_(at::sum(column * rest, at::IntArrayRef{1}, /*keepdim=*/true) * column);
    }
  }
}

void orthogonalize(const at::Tensor& matrices, double epsilon) {
  // A factorization is faster for more columns, but there is none in half precision.
  if (matrices.size(2) <= 2 || matrices.scalar_type() == at::kHalf ||
      matrices.scalar_type() == at::kBFloat16) {
    gram_schmidt(matrices, epsilon);
  } else {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
  }
}

// What is remembered of a bucket from step to step.
struct Memory {
  at::Tensor error;  // undefined without error feedback
  at::Tensor p, q;   // undefined without warm start
};

// A sum over the ranks that is under way.
class PendingSum {
 public:
  void start(c10d::ProcessGroup& group, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() == 0) return;  // so on all ranks
    std::vector<at::Tensor> tensors = {tensor};
    work_ = group.allreduce(tensors);
  }
  void wait() {
    if (work_) work_->wait();
    work_.reset();
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

// A bucket on its way: M is about P Q^T. The ranks first sum P = M Q and what is not compressed, then
// Q = M^T P.
struct Journey {
  GradientBucket bucket;
  TensorFuture result;
  at::Tensor flat;      // the gradients: the bucket's buffer, or a padded copy of it
  at::Tensor original;  // before compression, with error feedback
  std::vector<at::Tensor> direct;
  at::Tensor direct_memory;
  std::vector<std::vector<at::Tensor>> same_shape;  // [rows, columns] each
  std::vector<at::Tensor> matrices;                 // [batch, rows, columns]
  at::Tensor p_memory, q_memory;
  std::vector<at::Tensor> p, q;  // views of them, [batch, rows or columns, rank]
  PendingSum direct_sum, p_sum, q_sum;
  bool second = false;  // the sum of Q is under way
};

class PowerSgd final : public CommHook {
 public:
  PowerSgd(const PowerSgdOptions& options, bool batched)
      : options_(options), batched_(batched), seeds_(static_cast<uint32_t>(options.random_seed)) {}

  TensorFuture run(const GradientBucket& bucket, Communicator& communicator) override {
    if (bucket.index == 0) under_way_.clear();  // left by a step that failed
    if (iteration_ < options_.start_powerSGD_iter) {
      if (bucket.is_last) ++iteration_;
      return all_reduce_async(communicator, bucket.buffer.div_(communicator.size()));
    }
    const auto group = communicator.process_group();
    const auto ranks = static_cast<double>(communicator.size());
    // Whatever is under way moves one stage on, see Note [Communication hooks].
    while (!under_way_.empty() && under_way_.front().second) finish_first(ranks);
    for (Journey& journey : under_way_) send_q(journey, *group, ranks);
    under_way_.push_back(begin(bucket));
    Journey& own = under_way_.back();
    own.direct_sum.start(*group, own.direct_memory);
    own.p_sum.start(*group, own.p_memory);
    const TensorFuture result = own.result;
    if (bucket.is_last) {
      send_q(own, *group, ranks);
      while (!under_way_.empty()) finish_first(ranks);
      ++iteration_;
    }
    return result;
  }

 private:
  bool worth_compressing(int64_t rows, int64_t columns, int64_t rank) const {
    return static_cast<double>((rows + columns) * rank) * options_.min_compression_rate <
           static_cast<double>(rows * columns);
  }

  Journey begin(const GradientBucket& bucket) {
    Journey journey;
    journey.bucket = bucket;
    const auto device = bucket.buffer.device();
    journey.result = c10::make_intrusive<c10::ivalue::Future>(
        c10::TensorType::get(),
        device.is_cpu() ? std::vector<c10::Device>() : std::vector<c10::Device>{device});
    const auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(bucket.buffer.numel()))));
    if (batched_) {
      journey.flat = at::zeros({side * side}, bucket.buffer.options());
      journey.flat.narrow(0, 0, bucket.buffer.numel()).copy_(bucket.buffer);
    } else {
      journey.flat = bucket.buffer;
    }
    Memory& memory = memories_[bucket.index];
    if (options_.use_error_feedback) {
      if (memory.error.defined()) journey.flat.add_(memory.error);
      journey.original = journey.flat.clone();
    }
    if (batched_) {
      journey.same_shape = {{journey.flat.view({side, side})}};
    } else {
      choose(journey);
    }
    make_factors(journey, memory);
    for (size_t i = 0; i < journey.matrices.size(); ++i) {
      at::bmm_out(journey.p[i], journey.matrices[i], journey.q[i]);
    }
    return journey;
  }

  // Which gradients are compressed.
  void choose(Journey& journey) const {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& gradient : journey.bucket.gradients) {
      const int64_t rows = gradient.dim() == 0 ? 1 : gradient.size(0);
      const at::Tensor matrix = gradient.view({rows, rows == 0 ? 0 : gradient.numel() / rows});
      const int64_t rank = rank_of(matrix.size(0), matrix.size(1));
      if (!worth_compressing(matrix.size(0), matrix.size(1), rank)) {
        journey.direct.push_back(gradient);
        flat.push_back(gradient.reshape({-1}));
        continue;
      }
      auto& groups = journey.same_shape;
      const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& tensors) {
        return tensors.front().sizes() == matrix.sizes();
      });
      if (group == groups.end()) {
        groups.push_back({matrix});
      } else {
        group->push_back(matrix);
      }
    }
    if (!flat.empty()) journey.direct_memory = at::cat(flat);
  }

  int64_t rank_of(int64_t rows, int64_t columns) const {
    return std::min({rows, columns, options_.matrix_approximation_rank});
  }

  void make_factors(Journey& journey, Memory& memory) {
    int64_t p_size = 0;
    int64_t q_size = 0;
    for (const auto& tensors : journey.same_shape) {
      const int64_t rows = tensors.front().size(0);
      const int64_t columns = tensors.front().size(1);
      const auto count = static_cast<int64_t>(tensors.size());
      p_size += count * rows * rank_of(rows, columns);
      q_size += count * columns * rank_of(rows, columns);
      if (options_.batch_tensors_with_same_shape && count > 1) {
        journey.matrices.push_back(at::stack(tensors));
      } else {
        for (const at::Tensor& tensor : tensors) journey.matrices.push_back(tensor.unsqueeze(0));
      }
    }
    const bool fresh = !memory.p.defined();
    journey.p_memory = fresh ? at::empty({p_size}, journey.flat.options()) : memory.p;
    journey.q_memory = fresh ? at::empty({q_size}, journey.flat.options()) : memory.q;
    if (options_.warm_start) {
      memory.p = journey.p_memory;
      memory.q = journey.q_memory;
    }
    int64_t p_begin = 0;
    int64_t q_begin = 0;
    for (const at::Tensor& matrix : journey.matrices) {
      const int64_t rank = rank_of(matrix.size(1), matrix.size(2));
      const auto part = [&](const at::Tensor& whole, int64_t& begin, int64_t length) {
        const int64_t numel = matrix.size(0) * length * rank;
        begin += numel;
        return whole.narrow(0, begin - numel, numel).view({matrix.size(0), length, rank});
      };
      journey.p.push_back(part(journey.p_memory, p_begin, matrix.size(1)));
      journey.q.push_back(part(journey.q_memory, q_begin, matrix.size(2)));
    }
    if (fresh) fill_random(journey.q);
    for (const at::Tensor& q : journey.q) orthogonalize(q, options_.orthogonalization_epsilon);
  }

  // Equal on all ranks and different from bucket to bucket; no other random numbers change by it.
  void fill_random(const std::vector<at::Tensor>& tensors) {
    const at::Generator generator = at::detail::createCPUGenerator(seeds_.next());
    for (const at::Tensor& tensor : tensors) {
      tensor.copy_(at::randn(tensor.sizes(), generator, tensor.options().device(at::kCPU)));
    }
  }

  void send_q(Journey& journey, c10d::ProcessGroup& group, double ranks) const {
    journey.direct_sum.wait();
    if (journey.direct_memory.defined()) {
      journey.direct_memory.div_(ranks);
      int64_t begin = 0;
      for (const at::Tensor& gradient : journey.direct) {
        gradient.copy_(journey.direct_memory.narrow(0, begin, gradient.numel()).view(gradient.sizes()));
        begin += gradient.numel();
      }
    }
    journey.p_sum.wait();
    for (size_t i = 0; i < journey.matrices.size(); ++i) {
      orthogonalize(journey.p[i], options_.orthogonalization_epsilon);
      at::bmm_out(journey.q[i], journey.matrices[i].transpose(1, 2), journey.p[i]);
    }
    journey.q_sum.start(group, journey.q_memory);
    journey.second = true;
  }

  void finish_first(double ranks) {
    Journey& journey = under_way_.front();
    journey.q_sum.wait();
    journey.q_memory.div_(ranks);
    size_t next = 0;
    for (const auto& tensors : journey.same_shape) {
      for (size_t i = 0; i < tensors.size(); ++next) {
        at::Tensor& matrix = journey.matrices[next];
        at::bmm_out(matrix, journey.p[next], journey.q[next].transpose(1, 2));
        if (matrix.size(0) > 1) {
          for (int64_t part = 0; part < matrix.size(0); ++part) tensors[i++].copy_(matrix[part]);
        } else {
          ++i;  // computed where it lies
        }
      }
    }
    if (!at::isfinite(journey.q_memory).all().item<bool>()) {
      // A gradient that overflowed, as scaled ones do now and then: what is remembered of it would spoil all
      // that follow. The sum is the same on all ranks, and so is what they draw anew.
      memories_.erase(journey.bucket.index);
    } else if (options_.use_error_feedback) {
      memories_[journey.bucket.index].error = journey.original.sub_(journey.flat);
    }
    const at::Tensor& buffer = journey.bucket.buffer;
    if (batched_) buffer.copy_(journey.flat.narrow(0, 0, buffer.numel()));
    journey.result->markCompleted(buffer);
    under_way_.pop_front();
  }

  PowerSgdOptions options_;
  bool batched_;
  detail::PowerSgdSeeds seeds_;
  int64_t iteration_ = 0;
  std::map<int64_t, Memory> memories_;
  std::deque<Journey> under_way_;  // in the order of buckets
};

[[noreturn]] void refuse(const char* option, const std::string& expected, const std::string& got,
                         const std::string& hint = {}) {
  throw ConfigError(
      {.what = concat(option, " (PowerSgdOptions)"), .expected = expected, .got = got, .hint = hint});
}

}  // namespace

void check_power_sgd(const PowerSgdOptions& options) {
  if (options.matrix_approximation_rank < 1) {
    refuse("matrix_approximation_rank", "at least 1", concat(options.matrix_approximation_rank));
  }
  if (options.start_powerSGD_iter < 0) {
    refuse("start_powerSGD_iter", "at least 0", concat(options.start_powerSGD_iter));
  }
  if ((options.use_error_feedback || options.warm_start) && options.start_powerSGD_iter <= 1) {
    refuse("start_powerSGD_iter", "at least 2 with use_error_feedback or warm_start",
           concat(options.start_powerSGD_iter),
           "Buckets are made anew after the first step, and what is remembered of them would not fit.");
  }
  if (!(options.min_compression_rate > 0) || !std::isfinite(options.min_compression_rate)) {
    refuse("min_compression_rate", "a positive number", concat(options.min_compression_rate));
  }
  if (!(options.orthogonalization_epsilon >= 0) || !std::isfinite(options.orthogonalization_epsilon)) {
    refuse("orthogonalization_epsilon", "0 or a small positive number",
           concat(options.orthogonalization_epsilon));
  }
  if (options.random_seed < 0 || options.random_seed > std::numeric_limits<uint32_t>::max()) {
    refuse("random_seed", "0 to 4294967295", concat(options.random_seed));
  }
}

std::unique_ptr<CommHook> make_power_sgd(const PowerSgdOptions& options, bool batched) {
  check_power_sgd(options);
  return std::make_unique<PowerSgd>(options, batched);
}

}  // namespace accelerate
