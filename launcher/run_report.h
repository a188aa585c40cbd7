#pragma once

#include <string>
#include <vector>

#include "launcher/run_files.h"

namespace accelerate::cli {

/// One HTML document about the runs, side by side: what they were, a chart a metric, and their configuration.
/// It needs nothing from any network and runs no script.
/// @param title what the report is about, in its heading.
std::string run_report(const std::string& title, const std::vector<TrackedRun>& runs);

}  // namespace accelerate::cli
