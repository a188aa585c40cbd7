#pragma once

#include <string>
#include <vector>

// One function a subcommand of `accel`, each in the file of its name. Adding a subcommand is one file, one
// line here and one in main.cpp.

namespace CLI {
class App;
}

namespace accelerate::cli {

/// Every function adds its subcommand to `app`; when the user chose it, the subcommand runs inside
/// `app.parse()` and leaves its result in `exit_code`. Errors are thrown (accelerate::Error); main() prints
/// them.
void add_config_command(CLI::App& app, int& exit_code);
/// `program` holds, by the time `app` parses, the program to start and its arguments; see ParsedArguments.
void add_launch_command(CLI::App& app, int& exit_code, const std::vector<std::string>& program);
void add_env_command(CLI::App& app, int& exit_code);
void add_estimate_memory_command(CLI::App& app, int& exit_code);
void add_report_command(CLI::App& app, int& exit_code);
void add_checkpoint_command(CLI::App& app, int& exit_code);
void add_merge_weights_command(CLI::App& app, int& exit_code);
void add_test_command(CLI::App& app, int& exit_code);
void add_completion_command(CLI::App& app, int& exit_code);

}  // namespace accelerate::cli
