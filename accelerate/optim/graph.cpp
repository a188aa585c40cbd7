#include "accelerate/optim/graph.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>

namespace accelerate::detail {

std::vector<std::string> unreached_parameters(
    const at::Tensor& loss, const std::vector<std::pair<std::string, at::Tensor>>& candidates) {
  using torch::autograd::Node;
  std::unordered_set<const Node*> seen;
  std::unordered_set<const c10::TensorImpl*> reached;
  std::vector<Node*> open;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  visit(loss.grad_fn().get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      reached.insert(leaf->variable.unsafeGetTensorImpl());
    }
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  std::vector<std::string> names;
  for (const auto& [name, parameter] : candidates) {
    if (!reached.contains(parameter.unsafeGetTensorImpl())) names.push_back(name);
  }
  return names;
}

}  // namespace accelerate::detail
