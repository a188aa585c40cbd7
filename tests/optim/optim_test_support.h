#pragma once

#include <ATen/record_function.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accelerate/accelerate.h"
#include "test_support.h"

namespace accelerate::test {

/// An Accelerator of one rank that does not look at the machine's environment.
inline AcceleratorOptions alone(int64_t accumulation_steps = 1) {
  AcceleratorOptions options;
  options.environment = EnvVars();
  options.topology = Topology{.job_id = "alone"};
  options.gradient_accumulation_steps = accumulation_steps;
  return options;
}

/// What a script in tests/parity/ wrote.
inline nlohmann::json golden(const std::string& name) {
  return nlohmann::json::parse(
      std::ifstream(std::string(ACCELERATE_TEST_SOURCE_DIR) + "/tests/parity/" + name));
}

inline at::Tensor doubles(const nlohmann::json& numbers) {
  return torch::tensor(numbers.get<std::vector<double>>(), torch::kDouble);
}

/// All tensors flat, one after the other, in double precision.
inline at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.detach().reshape(-1).to(torch::kDouble));
  return torch::cat(parts);
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

inline at::ScalarType dtype_named(const std::string& name) {
  return name == "float64" ? torch::kDouble : name == "bfloat16" ? torch::kBFloat16 : torch::kFloat;
}

/// A module that is nothing but its parameters.
struct Weights : torch::nn::Module {
  explicit Weights(const std::vector<at::Tensor>& values) {
    for (const at::Tensor& value : values) {
      all.push_back(register_parameter(concat("w", all.size()), value.detach().clone()));
    }
  }
  std::vector<at::Tensor> all;
};

/// Counts how often torch operators whose name begins with a prefix are called on this thread.
class CallCounter {
 public:
  explicit CallCounter(std::string prefix) {
    current() = {std::move(prefix), 0};
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&CallCounter::on_call));
  }
  ~CallCounter() { at::removeCallback(handle_); }
  CallCounter(const CallCounter&) = delete;
  CallCounter& operator=(const CallCounter&) = delete;
  int64_t count() const { return current().second; }

 private:
  static std::pair<std::string, int64_t>& current() {
    static thread_local std::pair<std::string, int64_t> value;
    return value;
  }
  static std::unique_ptr<at::ObserverContext> on_call(const at::RecordFunction& call) {
    current().second += std::string(call.name()).rfind(current().first, 0) == 0;
    return nullptr;
  }

  at::CallbackHandle handle_;
};

}  // namespace accelerate::test
