#include "accelerate/checkpoint/rng_state.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/DeviceType.h>

#include <optional>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

std::string key_of(c10::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/true);
}

// Nothing for devices whose back end has no generator of its own.
std::optional<at::Generator> generator_of(at::Device device) {
  try {
    return at::globalContext().defaultGenerator(device);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

void add_state(TensorDict& out, at::Device device) {
  auto generator = generator_of(device);
  if (!generator) return;
  const std::lock_guard lock(generator->mutex());
  out.emplace(key_of(device.type()), generator->get_state().clone());
}

}  // namespace

TensorDict rng_states(at::Device device) {
  TensorDict out;
  add_state(out, at::kCPU);
  if (!device.is_cpu()) add_state(out, device);
  return out;
}

std::vector<std::string> set_rng_states(at::Device device, const TensorDict& states) {
  std::vector<at::Device> devices = {at::Device(at::kCPU)};
  if (!device.is_cpu()) devices.push_back(device);
  std::vector<std::string> lacking;
  for (const at::Device each : devices) {
    auto generator = generator_of(each);
    if (!generator) continue;
    const auto state = states.find(key_of(each.type()));
    if (state == states.end()) {
      lacking.push_back(key_of(each.type()));
      continue;
    }
    try {
      const std::lock_guard lock(generator->mutex());
      generator->set_state(state->second.clone());
    } catch (const c10::Error& error) {
      throw CheckpointError({.what = concat("the state of the random generator of ", each.str()),
                             .got = error.what_without_backtrace()});
    }
  }
  return lacking;
}

}  // namespace accelerate
