#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/version.h"
#include "launcher/arguments.h"
#include "launcher/commands.h"
#include "launcher/flag_checks.h"

namespace accelerate::cli {
namespace {

// A descriptor 0, 1 or 2 that is closed at the start would be given to the next file that is opened.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) [[maybe_unused]]
      const int opened = ::open("/dev/null", O_RDWR);
  }
}

int run_main(int argc, char** argv) {
  open_standard_descriptors();
  int exit_code = 0;
  ParsedArguments arguments;
  CLI::App app("Starts and configures training with accelerate", "accel");
  app.set_version_flag("--version", std::string("accel ") + kVersion);
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(40);
  add_launch_command(app, exit_code, arguments.program);
  add_config_command(app, exit_code);
  add_env_command(app, exit_code);
  add_estimate_memory_command(app, exit_code);
  add_report_command(app, exit_code);
  add_checkpoint_command(app, exit_code);
  add_merge_weights_command(app, exit_code);
  add_test_command(app, exit_code);
  add_completion_command(app, exit_code);
  let_last_flag_count(app);
  try {
    arguments = parse_arguments(app, {argv + 1, argv + argc});
    std::vector<std::string> reversed(arguments.own.rbegin(), arguments.own.rend());
    app.parse(std::move(reversed));
    if (app.get_subcommands().empty()) {
      std::cout << app.help();
      return static_cast<int>(ExitCode::kFailure);
    }
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" with exit code 0.
    if (error.get_exit_code() == 0) return app.exit(error);
    std::cerr << accelerate::concat("accel: error: ", error.what(), "\n");
    return static_cast<int>(ExitCode::kConfigError);
  } catch (const Error& error) {
    std::cerr << accelerate::concat("accel: error: ", error.what(), "\n");
    return error.exit_code();
  } catch (const std::exception& error) {
    std::cerr << accelerate::concat("accel: error: ", error.what(), "\n");
    return static_cast<int>(ExitCode::kFailure);
  }
  return exit_code;
}

}  // namespace
}  // namespace accelerate::cli

int main(int argc, char** argv) {
  return accelerate::cli::run_main(argc, argv);
}
