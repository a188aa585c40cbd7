#include "accelerate/precision/autocast.h"

#include <ATen/autocast_mode.h>

namespace accelerate {

AutocastGuard::AutocastGuard(at::DeviceType device_type, at::ScalarType dtype, bool enabled)
    : device_type_(device_type),
      enabled_before_(at::autocast::is_autocast_enabled(device_type)),
      dtype_before_(at::autocast::get_autocast_dtype(device_type)),
      cache_before_(at::autocast::is_autocast_cache_enabled()) {
  // Copies of weights are kept by weight alone: one in another dtype must not be taken for ours.
  if (dtype != dtype_before_) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type, enabled);
  at::autocast::set_autocast_dtype(device_type, dtype);
  at::autocast::set_autocast_cache_enabled(true);
  at::autocast::increment_nesting();
}

AutocastGuard::~AutocastGuard() {
  const bool other_dtype = at::autocast::get_autocast_dtype(device_type_) != dtype_before_;
  if (at::autocast::decrement_nesting() == 0 || other_dtype) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, enabled_before_);
  at::autocast::set_autocast_dtype(device_type_, dtype_before_);
  at::autocast::set_autocast_cache_enabled(cache_before_);
}

}  // namespace accelerate
