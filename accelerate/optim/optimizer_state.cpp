#include "accelerate/optim/optimizer_state.h"

#include <torch/serialize.h>

#include <cstring>
#include <sstream>
#include <string>

namespace accelerate {
namespace {

std::string save(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream out;
  archive.save_to(out);
  return out.str();
}

void load(torch::optim::Optimizer& optimizer, const at::Tensor& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
  optimizer.load(archive);
}

}  // namespace

void broadcast_optimizer_state(Communicator& communicator, torch::optim::Optimizer& optimizer, int root) {
  const bool is_root = communicator.rank() == root;
  const std::string text = is_root ? save(optimizer) : std::string();
  at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::TensorOptions(at::kLong));
  communicator.broadcast(size, root);
  at::Tensor bytes = at::empty({size.item<int64_t>()}, at::TensorOptions(at::kByte));
  if (is_root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  communicator.broadcast(bytes, root);
  if (!is_root) load(optimizer, bytes);
}

}  // namespace accelerate
