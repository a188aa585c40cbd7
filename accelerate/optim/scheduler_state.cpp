#include "accelerate/optim/scheduler_state.h"

#include <c10/util/Type.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/private_member_internal.h"
#include "accelerate/core/strings.h"
#include "accelerate/optim/lr_schedules.h"

namespace accelerate {
namespace detail {

using torch::optim::ReduceLROnPlateauScheduler;

// See Note [Private members].
struct PlateauBest {
  using Type = float ReduceLROnPlateauScheduler::*;
  friend Type private_member(PlateauBest);
};
struct PlateauCooldown {
  using Type = int ReduceLROnPlateauScheduler::*;
  friend Type private_member(PlateauCooldown);
};
struct PlateauBadEpochs {
  using Type = int ReduceLROnPlateauScheduler::*;
  friend Type private_member(PlateauBadEpochs);
};
struct PlateauEpoch {
  using Type = int ReduceLROnPlateauScheduler::*;
  friend Type private_member(PlateauEpoch);
};
template struct PrivateMember<PlateauBest, &ReduceLROnPlateauScheduler::best>;
template struct PrivateMember<PlateauCooldown, &ReduceLROnPlateauScheduler::cooldown_counter>;
template struct PrivateMember<PlateauBadEpochs, &ReduceLROnPlateauScheduler::num_bad_epochs>;
template struct PrivateMember<PlateauEpoch, &ReduceLROnPlateauScheduler::last_epoch>;

}  // namespace detail

namespace {

using Json = nlohmann::ordered_json;
using torch::optim::LRScheduler;
using torch::optim::ReduceLROnPlateauScheduler;

constexpr int64_t kFormatVersion = 1;

// step_count_ is protected: a derived class may name it.
struct StepCount : LRScheduler {
  static unsigned& of(LRScheduler& scheduler) { return scheduler.*(&StepCount::step_count_); }
  static unsigned of(const LRScheduler& scheduler) { return scheduler.*(&StepCount::step_count_); }
};

template <class Scheduler>
std::string type_name(const Scheduler& scheduler) {
  const std::string name = c10::demangle(typeid(scheduler).name());
  for (const std::string_view prefix : {"torch::optim::", "accelerate::"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

template <class Scheduler>
Json header(const Scheduler& scheduler) {
  return {{"format_version", kFormatVersion}, {"type", type_name(scheduler)}};
}

[[noreturn]] void damaged(const std::string& what) {
  throw CheckpointError({.what = concat("the state of a learning-rate schedule can't be read: ", what),
                         .expected = "JSON as written by this library",
                         .hint = "Take another copy of the checkpoint, or an older one."});
}

// A whole number from 0 to what a T holds.
template <class T>
T count(const Json& file, const char* key) {
  const Json& value = file.at(key);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{std::numeric_limits<T>::max()}) {
    damaged(concat("'", key, "' is ", value.dump()));
  }
  return value.get<T>();
}

// The best metric may be infinite or no number, for which JSON has none: "inf", "-inf", "nan".
Json number(float value) {
  if (std::isfinite(value)) return static_cast<double>(value);
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

float number(const Json& value) {
  if (value.is_number()) return value.get<float>();
  if (value == "nan") return std::numeric_limits<float>::quiet_NaN();
  if (value == "inf") return std::numeric_limits<float>::infinity();
  if (value == "-inf") return -std::numeric_limits<float>::infinity();
  damaged(concat("the best metric is ", value.dump()));
}

// Checks what all states begin with and hands the rest to `read`.
template <class Scheduler, class F>
void load(const Scheduler& scheduler, const std::string& text, F&& read) {
  try {
    const Json file = Json::parse(text);
    const auto version = file.at("format_version").get<int64_t>();
    if (version > kFormatVersion) {
      throw CheckpointError(
          {.what = "the state of a learning-rate schedule has a newer format",
           .expected = concat("format_version ", kFormatVersion, " at most"),
           .got = concat(version),
           .hint = "Read it with the version of accelerate that wrote it, or a later one."});
    }
    const auto type = file.at("type").get<std::string>();
    if (type != type_name(scheduler)) {
      throw CheckpointError(
          {.what = "the state is of another learning-rate schedule",
           .expected = type_name(scheduler),
           .got = type,
           .hint = "Make the same schedule as when it was saved, or begin a new one without loading."});
    }
    read(file);
  } catch (const nlohmann::json::exception& error) {
    damaged(error.what());
  }
}

}  // namespace

std::string scheduler_state(const LRScheduler& scheduler) {
  Json out = header(scheduler);
  if (const auto* lambda = dynamic_cast<const LambdaLR*>(&scheduler)) {
    const LrScheduleState state = lambda->state();
    out["step"] = state.step;
    out["base_rates"] = state.base_rates;
  } else {
    out["step_count"] = StepCount::of(scheduler);
  }
  return out.dump(2);
}

std::string scheduler_state(const ReduceLROnPlateauScheduler& scheduler) {
  Json out = header(scheduler);
  out["best"] = number(scheduler.*private_member(detail::PlateauBest{}));
  out["cooldown_counter"] = scheduler.*private_member(detail::PlateauCooldown{});
  out["num_bad_epochs"] = scheduler.*private_member(detail::PlateauBadEpochs{});
  out["last_epoch"] = scheduler.*private_member(detail::PlateauEpoch{});
  return out.dump(2);
}

void load_scheduler_state(LRScheduler& scheduler, const std::string& json) {
  load(scheduler, json, [&](const Json& file) {
    auto* lambda = dynamic_cast<LambdaLR*>(&scheduler);
    if (lambda == nullptr) {
      StepCount::of(scheduler) = count<unsigned>(file, "step_count");
      return;
    }
    // LambdaLR counts one more than the step.
    const auto step = static_cast<int64_t>(count<int32_t>(file, "step"));
    try {
      lambda->load_state({.step = step, .base_rates = file.at("base_rates").get<std::vector<double>>()});
    } catch (const ConfigError& error) {
      throw CheckpointError(error.text());
    }
  });
}

void load_scheduler_state(ReduceLROnPlateauScheduler& scheduler, const std::string& json) {
  load(scheduler, json, [&](const Json& file) {
    const float best = number(file.at("best"));
    const int cooldown = count<int>(file, "cooldown_counter");
    const int bad_epochs = count<int>(file, "num_bad_epochs");
    const int epoch = count<int>(file, "last_epoch");
    scheduler.*private_member(detail::PlateauBest{}) = best;
    scheduler.*private_member(detail::PlateauCooldown{}) = cooldown;
    scheduler.*private_member(detail::PlateauBadEpochs{}) = bad_epochs;
    scheduler.*private_member(detail::PlateauEpoch{}) = epoch;
  });
}

}  // namespace accelerate
