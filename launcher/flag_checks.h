#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>

namespace accelerate::cli {

/// Takes integers of a range; the message says what was expected and what was got. The help says nothing of
/// it, as a flag's own text does.
CLI::Validator integer_from(int64_t least, int64_t most = 1'000'000);

/// The same for a number of seconds.
CLI::Validator seconds_from(double least, double most);

/// Of a flag that is given several times, the last counts, as with argparse; for `app` and all its
/// subcommands. Flags that collect their values keep doing so.
void let_last_flag_count(CLI::App& app);

}  // namespace accelerate::cli
