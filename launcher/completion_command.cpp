// `accel completion`: a script for the shell.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "launcher/commands.h"
#include "launcher/completion.h"

namespace accelerate::cli {

void add_completion_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "completion", "Print a script that completes accel's commands and flags, for bash, zsh or fish");
  const auto shell = std::make_shared<std::string>();
  command->add_option("shell", *shell, "bash, zsh or fish")->required();
  command->callback([&app, shell, &exit_code] {
    std::cout << completion_script(app, *shell);
    exit_code = 0;
  });
}

}  // namespace accelerate::cli
