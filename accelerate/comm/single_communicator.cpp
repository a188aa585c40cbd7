#include "accelerate/comm/single_communicator.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  explicit SingleCommunicator(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string backend_name() const override { return "none"; }

  void all_reduce(at::Tensor& tensor, ReduceOp op) override { check_reduce(tensor, op, 0); }
  void broadcast(at::Tensor&, int root) override {
    if (root != 0) {
      throw ConfigError(
          {.what = "broadcast in a job of one rank", .expected = "root 0", .got = std::to_string(root)});
    }
  }
  at::Tensor all_gather(const at::Tensor& tensor) override {
    return tensor.dim() == 0 ? tensor.reshape({1}) : tensor.clone();
  }
  at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp op) override {
    check_reduce(tensor, op, 0);
    return tensor.clone();
  }
  void scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, int root) override {
    if (root != 0 || inputs.size() != 1) {
      throw ConfigError({.what = "scatter in a group of one rank", .expected = "root 0 and one input"});
    }
    output.copy_(inputs[0]);
  }
  void send(const at::Tensor&, int destination, int) override { no_peer("send to", destination); }
  void receive(at::Tensor&, int source, int) override { no_peer("receive from", source); }
  void barrier() override {}
  void check_point(const std::string&) override {}
  Store* store() override { return nullptr; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override { return {}; }
  [[noreturn]] void rethrow(const std::string&) override { throw; }

 private:
  [[noreturn]] static void no_peer(const char* what, int peer) {
    throw ConfigError({.what = concat(what, " rank ", peer, " in a group of one rank"),
                       .hint = "Messages go to another rank; start more than one."});
  }

  std::chrono::milliseconds timeout_;
};

}  // namespace

std::shared_ptr<Communicator> make_single_communicator(std::chrono::milliseconds timeout) {
  return std::make_shared<SingleCommunicator>(timeout);
}

void check_reduce(const at::Tensor& tensor, ReduceOp op, int rank) {
  if (op == ReduceOp::kMean && !at::isFloatingType(tensor.scalar_type()) &&
      !at::isComplexType(tensor.scalar_type())) {
    throw ConfigError({.what = "mean over ranks",
                       .expected = "a floating dtype",
                       .got = std::string(c10::toString(tensor.scalar_type())),
                       .hint = "Convert the tensor first (tensor.to(torch::kFloat)) or use the sum.",
                       .rank = rank});
  }
}

}  // namespace accelerate::detail
