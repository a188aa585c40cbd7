// `accel config`: makes, shows, checks and updates configuration files.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "accelerate/config/schema.h"
#include "launcher/commands.h"
#include "launcher/config_actions.h"
#include "launcher/flag_checks.h"
#include "launcher/terminal.h"

namespace accelerate::cli {
namespace {

struct State {
  ConfigRequest request;
  std::string file;
  int64_t num_processes = 0;
  bool basic = false;
};

using Action = int (*)(const ConfigRequest&, const ConfigIo&);

int run(State& state, Action action) {
  if (!state.file.empty()) state.request.file = state.file;
  if (state.num_processes > 0) state.request.num_processes = state.num_processes;
  const EnvVars variables = EnvVars::from_process();
  return action(state.request, {.variables = variables,
                                .in = std::cin,
                                .out = std::cout,
                                .err = std::cerr,
                                .terminal = Terminal::usable(variables)});
}

// A subcommand that takes the file as an argument, or as HF Accelerate's --config_file.
CLI::App* add_file_action(CLI::App& config, const char* name, const char* help,
                          const std::shared_ptr<State>& state, int& exit_code, Action action) {
  CLI::App* command = config.add_subcommand(name, help);
  command->add_option("file", state->file, "The file (default: the one that a launch would read)");
  command->add_option("--config_file,--config-file", state->file, "The same")->type_name("FILE");
  command->callback([state, &exit_code, action] { exit_code = run(*state, action); });
  return command;
}

}  // namespace

void add_config_command(CLI::App& app, int& exit_code) {
  const auto state = std::make_shared<State>();
  CLI::App* config = app.add_subcommand(
      "config",
      "Ask how jobs should run and save the answers. Data parallel (MULTI_CPU, MULTI_GPU): faster, same "
      "memory a device. Sharded (FSDP, ZeRO): less memory a device, not supported yet.");
  config->add_option("--config_file,--config-file", state->file,
                     "Where to save (default: $ACCELERATE_CONFIG_FILE, or accelerate/default_config.yaml in "
                     "$XDG_CONFIG_HOME or ~/.config)");
  config->add_flag("--force", state->request.force, "Overwrite an existing file without asking");
  config->add_flag("--default", state->basic, "Save a basic file without asking");
  config
      ->add_option("--mixed_precision,--mixed-precision", state->request.mixed_precision,
                   "With --default: number format of the forward pass")
      ->needs("--default");
  config->require_subcommand(0, 1);
  config->callback([config, state, &exit_code] {
    if (!config->get_subcommands().empty()) return;
    exit_code = run(*state, state->basic ? save_basic : ask_and_save);
  });

  CLI::App* basic = config->add_subcommand("default", "The same as --default");
  basic->add_option("--config_file,--config-file", state->file, "Where to save");
  basic->add_flag("--force", state->request.force, "Overwrite an existing file");
  basic->add_option("--mixed_precision,--mixed-precision", state->request.mixed_precision,
                    "Number format of the forward pass");
  basic->callback([state, &exit_code] { exit_code = run(*state, save_basic); });

  add_file_action(*config, "show", "Print every value that a launch would use, with its origin", state,
                  exit_code, show_config);
  CLI::App* check = add_file_action(*config, "validate",
                                    "Print all that is wrong with a file, or with a JSON file of "
                                    "DeepSpeed's; exit code 2 if there is an error",
                                    state, exit_code, validate_file);
  check
      ->add_option("--num_processes,--num-processes", state->num_processes,
                   "Check for a launch with this number of processes, over all machines")
      ->check(integer_from(1));
  add_file_action(*config, "update", "Rewrite a file with today's spellings", state, exit_code, update_file);

  CLI::App* keys = config->add_subcommand("keys", "Print all keys with values, defaults and variables");
  keys->callback([&exit_code] {
    std::cout << describe_schema();
    exit_code = 0;
  });
}

}  // namespace accelerate::cli
