// `accel test`: starts ranks that check what training rests on.
#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>

#include "accelerate/config/load.h"
#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "launcher/commands.h"
#include "launcher/flag_checks.h"

namespace accelerate::cli {
namespace {

constexpr int kUsualRanks = 2;

struct Request {
  std::string config_file;
  int num_processes = 0;  ///< 0: not given
};

std::string self_test_program(const std::filesystem::path& accel) {
  const auto program = (accel.parent_path() / ACCELERATE_SELF_TEST).lexically_normal();
  if (!std::filesystem::exists(program)) {
    throw LaunchError(
        {.what = concat(shell_quote(program.string()), " is not there"),
         .hint = "`accel test` needs accelerate built with torch (without ACCELERATE_CORE_ONLY)."});
  }
  return program.string();
}

// The launch that the test is. A configuration decides all that was not typed; without one, two ranks.
std::vector<std::string> launch_words(const Request& request, const EnvVars& variables) {
  std::vector<std::string> out = {"launch"};
  if (!request.config_file.empty()) out.insert(out.end(), {"--config_file", request.config_file});
  const bool configured = !request.config_file.empty() || find_default_config_file(variables);
  if (!configured) {
    out.push_back(detect_machine(variables).cuda_devices >= std::max(request.num_processes, kUsualRanks)
                      ? "--multi_gpu"
                      : "--cpu");
  }
  const int ranks = request.num_processes > 0 || configured ? request.num_processes : kUsualRanks;
  if (ranks > 0) out.insert(out.end(), {"--num_processes", std::to_string(ranks)});
  return out;
}

int run_test(const Request& request) {
  const EnvVars variables = EnvVars::from_process();
  std::error_code error;
  const auto accel = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> words = launch_words(request, variables);
  words.push_back(self_test_program(accel));
  std::string shown = "Running: accel";
  for (const std::string& word : words) shown += concat(" ", shell_quote(word));
  std::cout << shown << std::endl;

  std::vector<std::string> environment;
  for (const auto& [name, value] : variables.values()) environment.push_back(concat(name, "=", value));
  // In our process group, so that Ctrl-C reaches the launcher; where we are killed, it stops the ranks in
  // order.
  ChildProcess child = spawn({.program = accel.string(),
                              .arguments = words,
                              .environment = environment,
                              .working_directory = {},
                              .inherited_fds = {},
                              .own_process_group = false,
                              .parent_death_signal = SIGTERM,
                              .keep_ignored = {}});
  std::optional<WaitStatus> status;
  while (!status) status = child.wait(Deadline::after(std::chrono::hours(1)));
  if (status->success()) {
    std::cout << "Test is a success! You are ready for your distributed training!" << std::endl;
    return 0;
  }
  std::cerr << "Test failed: the messages above say where (launcher " << status->describe() << ")."
            << std::endl;
  return status->shell_code();
}

}  // namespace

void add_test_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "test", "Start processes that check collectives, sampling, training and saving on this machine");
  const auto request = std::make_shared<Request>();
  command->add_option("--config_file", request->config_file, "Configuration file (YAML or JSON)")
      ->type_name("FILE");
  command
      ->add_option("--num_processes", request->num_processes,
                   "Processes to start [the configuration's, or 2]")
      ->check(integer_from(1))
      ->type_name("N");
  command->callback([request, &exit_code] { exit_code = run_test(*request); });
}

}  // namespace accelerate::cli
