#include "accelerate/data/tensor_dict.h"

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {

at::Tensor& Batch::operator[](const std::string& name) {
  if (name == "data" && data.defined()) return data;
  if (name == "target" && target.defined()) return target;
  if (const auto found = others.find(name); found != others.end()) return found->second;
  std::vector<std::string> names;
  if (data.defined()) names.emplace_back("data");
  if (target.defined()) names.emplace_back("target");
  for (const auto& [other, tensor] : others) names.push_back(other);
  const auto near = nearest_name(name, names);
  throw DataError({.what = concat("the batch has no tensor called '", name, "'"),
                   .expected = concat("one of ", join(names, ", ")),
                   .hint = near ? concat("Did you mean '", *near, "'?") : ""});
}

const at::Tensor& Batch::operator[](const std::string& name) const {
  return const_cast<Batch&>(*this)[name];
}

bool Batch::contains(const std::string& name) const {
  if (name == "data") return data.defined();
  if (name == "target") return target.defined();
  return others.contains(name);
}

int64_t Batch::size() const {
  if (data.defined()) return data.size(0);
  if (target.defined()) return target.size(0);
  return others.empty() ? 0 : others.begin()->second.size(0);
}

}  // namespace accelerate
