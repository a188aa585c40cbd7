#include "accelerate/optim/optimizer_state.h"

#include <torch/serialize.h>

#include <optional>
#include <sstream>
#include <string>

#include "accelerate/comm/object_collectives.h"

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
void load(torch::optim::Optimizer& optimizer, const std::string& text,
          std::optional<at::Device> device = std::nullopt) {
  torch::serialize::InputArchive archive;
  archive.load_from(text.data(), text.size(), device);
  optimizer.load(archive);
}

}  // namespace

void broadcast_optimizer_state(Communicator& communicator, torch::optim::Optimizer& optimizer, int root) {
  const bool is_root = communicator.rank() == root;
  const std::string text = broadcast_bytes(communicator, is_root ? save(optimizer) : "", root);
  if (!is_root) load(optimizer, text);
}

void move_optimizer_state(torch::optim::Optimizer& optimizer, at::Device device) {
  if (optimizer.state().empty()) return;
  load(optimizer, save(optimizer), device);
}

}  // namespace accelerate
