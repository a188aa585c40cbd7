#include "accelerate/optim/optimizer_state.h"

#include <torch/serialize.h>

#include <cstring>
#include <optional>
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

// Tensors come to `device`, or where nothing is given to the one that they were saved from.
void load(torch::optim::Optimizer& optimizer, const char* data, size_t size,
          std::optional<at::Device> device = std::nullopt) {
  torch::serialize::InputArchive archive;
  archive.load_from(data, size, device);
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
  if (!is_root) load(optimizer, static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes());
}

void move_optimizer_state(torch::optim::Optimizer& optimizer, at::Device device) {
  if (optimizer.state().empty()) return;
  const std::string text = save(optimizer);
  load(optimizer, text.data(), text.size(), device);
}

}  // namespace accelerate
