#include "accelerate/strategy/model_check.h"

#include <ATen/Functions.h>

#include <sstream>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

std::vector<std::string> describe(const torch::nn::Module& module) {
  std::vector<std::string> lines;
  for (const auto& entry : module.named_parameters()) {
    std::ostringstream line;
    line << entry.key() << ' ' << c10::toString(entry.value().scalar_type()) << ' ' << entry.value().sizes()
         << (entry.value().requires_grad() ? "" : " frozen");
    lines.push_back(line.str());
  }
  return lines;
}

// FNV-1a: equal on all machines, unlike std::hash.
int64_t digest(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return static_cast<int64_t>(hash);
}

std::string broadcast_text(Communicator& communicator, std::string text) {
  at::Tensor size = at::full({1}, static_cast<int64_t>(text.size()), at::kLong);
  communicator.broadcast(size, 0);
  at::Tensor bytes = at::empty({size.item<int64_t>()}, at::kByte);
  if (communicator.rank() == 0) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  communicator.broadcast(bytes, 0);
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

std::string first_difference(const std::vector<std::string>& own, const std::vector<std::string>& other) {
  for (size_t i = 0; i < std::max(own.size(), other.size()); ++i) {
    const std::string mine = i < own.size() ? own[i] : "none";
    const std::string theirs = i < other.size() ? other[i] : "none";
    if (mine != theirs) return concat("parameter ", i, " is [", mine, "] here and [", theirs, "] on rank 0");
  }
  return "no difference";
}

}  // namespace

void check_same_model(Communicator& communicator, const torch::nn::Module& module) {
  const std::vector<std::string> lines = describe(module);
  const std::string text = join(lines, "\n");
  const at::Tensor all = communicator.all_gather(at::full({1}, digest(text), at::kLong));
  std::vector<int> different;
  for (int rank = 1; rank < communicator.size(); ++rank) {
    if (all[rank].item<int64_t>() != all[0].item<int64_t>()) different.push_back(rank);
  }
  if (different.empty()) return;
  const std::string main_text = broadcast_text(communicator, text);
  const bool own = main_text != text;
  throw ConfigError({.what = own ? concat("this rank's model is not rank 0's: ",
                                          first_difference(lines, split(main_text, '\n')))
                                 : concat("the model of ", format_ranks(different), " is not rank 0's"),
                     .hint = "Build the same model on all ranks, in the same order.",
                     .rank = communicator.rank()});
}

}  // namespace accelerate::detail
