// `accel report`: one HTML file about the runs in a folder.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"
#include "launcher/commands.h"
#include "launcher/run_files.h"
#include "launcher/run_report.h"

namespace accelerate::cli {
namespace {

struct ReportFlags {
  std::string directory;
  std::string output;
};

int report(const ReportFlags& flags) {
  const std::vector<TrackedRun> runs = find_runs(flags.directory);
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(flags.directory, error);
  const std::string output =
      flags.output.empty() ? (std::filesystem::path(flags.directory) / "report.html").string() : flags.output;
  write_file_atomically(system_files(), output, run_report(path.filename().string(), runs));
  std::cout << output << ": " << runs.size() << (runs.size() == 1 ? " run\n" : " runs\n");
  return 0;
}

}  // namespace

void add_report_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "report", "Write an HTML page with the curves and the configuration of the runs in a folder");
  const auto flags = std::make_shared<ReportFlags>();
  command->add_option("directory", flags->directory, "Folder that trackers wrote to, or one above it")
      ->required()
      ->type_name("DIR");
  command->add_option("-o,--output", flags->output, "File to write (default: DIR/report.html)")
      ->type_name("FILE");
  command->callback([flags, &exit_code] { exit_code = report(*flags); });
}

}  // namespace accelerate::cli
