// `accel checkpoint`: what is in checkpoints, and whether they are whole.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "accelerate/core/strings.h"
#include "launcher/checkpoint_report.h"
#include "launcher/commands.h"

namespace accelerate::cli {
namespace {

struct State {
  std::string path;
  bool json = false;
  bool tensors = false;
  bool quick = false;
};

// One line that is written over, in a terminal only.
VerifyCallback progress_line(bool wanted) {
  if (!wanted || ::isatty(STDERR_FILENO) == 0) return {};
  const auto shown = std::make_shared<uint64_t>(UINT64_MAX);
  return [shown](const VerifyProgress& progress) {
    const uint64_t percent =
        progress.total_bytes == 0 ? 100 : progress.done_bytes * 100 / progress.total_bytes;
    if (percent == *shown) return;
    *shown = percent;
    std::cerr << accelerate::concat("\r", percent, " % of ", format_bytes(progress.total_bytes),
                                    percent >= 100 ? "\n" : "")
              << std::flush;
  };
}

int run(const State& state, VerifyLevel level, bool with_files) {
  const CheckpointReports reports =
      report_checkpoints(system_files(), state.path,
                         {.level = level,
                          .with_tensors = state.tensors,
                          .progress = progress_line(level == VerifyLevel::kFull && !state.json)});
  std::cout << (state.json ? report_json(reports) : report_text(reports, with_files));
  return reports.exit_code();
}

CLI::App* add_action(CLI::App& checkpoint, const char* name, const char* help,
                     const std::shared_ptr<State>& state) {
  CLI::App* command = checkpoint.add_subcommand(name, help);
  command->add_option("path", state->path, "A checkpoint, or a folder of checkpoint_<n>")->required();
  command->add_flag("--json", state->json, "Print JSON");
  command->footer("Exit code: 0 all is complete, 6 something is damaged or not there, 2 wrong usage.");
  return command;
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& exit_code) {
  CLI::App* checkpoint =
      app.add_subcommand("checkpoint", "Look into checkpoints and check that they are whole");
  checkpoint->require_subcommand(1);
  const auto state = std::make_shared<State>();
  CLI::App* inspect = add_action(
      *checkpoint, "inspect", "Say what is in it, and whether all files are there with their sizes", state);
  inspect->add_flag("--tensors", state->tensors, "Also the tensors of its safetensors files");
  inspect->callback([state, &exit_code] { exit_code = run(*state, VerifyLevel::kQuick, true); });
  CLI::App* verify = add_action(*checkpoint, "verify", "Read every file and compare its checksum", state);
  verify->add_flag("--quick", state->quick, "Compare sizes only");
  verify->callback([state, &exit_code] {
    exit_code = run(*state, state->quick ? VerifyLevel::kQuick : VerifyLevel::kFull, false);
  });
}

}  // namespace accelerate::cli
