#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

/// The names that make_tracker() knows.
std::vector<std::string> tracker_names();

/// A tracker that has not started. `arguments` may hold `main_process_only`.
/// @throws ConfigError for a name that is not known, with the nearest that is.
std::shared_ptr<Tracker> make_tracker(std::string_view name, const TrackerArguments& arguments = {});

}  // namespace accelerate
