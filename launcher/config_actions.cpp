#include "launcher/config_actions.h"

#include <algorithm>
#include <filesystem>
#include <istream>
#include <memory>
#include <optional>
#include <ostream>

#include "accelerate/config/deepspeed_file.h"
#include "accelerate/config/load.h"
#include "accelerate/config/schema.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "launcher/config_prompt.h"
#include "launcher/config_questions.h"
#include "launcher/config_save.h"
#include "launcher/menu.h"

namespace accelerate::cli {
namespace {

std::string place_to_save(const ConfigRequest& request, const ConfigIo& io) {
  return request.file ? *request.file : default_save_path(io.variables);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// The named file, or the one that a launch would read.
std::optional<std::string> file_to_read(const ConfigRequest& request, const ConfigIo& io) {
  return request.file ? request.file : find_default_config_file(io.variables);
}

std::string file_that_must_be(const ConfigRequest& request, const ConfigIo& io) {
  if (auto file = file_to_read(request, io)) return *file;
  throw ConfigError({.what = "no configuration file found",
                     .expected = {},
                     .got = {},
                     .hint = "Name one, or make one with: accel config"});
}

void print(std::ostream& out, const Problem& problem) {
  out << (problem.severity == Severity::kError ? "error: " : "warning: ") << describe(problem) << '\n';
}

// A file by itself: what the variables of this shell say is no part of it.
InspectedConfig inspect_alone(const std::string& file, const ConfigIo& io,
                              std::optional<int64_t> num_processes = std::nullopt) {
  EnvVars none;
  if (auto allowed = io.variables.get("ACCELERATE_ALLOW_UNKNOWN_KEYS")) {
    none.set("ACCELERATE_ALLOW_UNKNOWN_KEYS", *allowed);
  }
  ConfigSources sources{.file = file, .environment = none, .machine = detect_machine(io.variables)};
  if (num_processes) sources.command_line.push_back({"num_processes", std::to_string(*num_processes)});
  return inspect_config(sources);
}

// Prints problems and counts them.
class ProblemPrinter {
 public:
  explicit ProblemPrinter(std::ostream& out) : out_(out) {}

  void print(const Problem& problem) {
    cli::print(out_, problem);
    ++(problem.severity == Severity::kError ? errors_ : warnings_);
  }
  /// The last line; returns the exit code.
  int finish(const std::string& file) {
    out_ << file << ": " << errors_ << (errors_ == 1 ? " error, " : " errors, ") << warnings_
         << (warnings_ == 1 ? " warning\n" : " warnings\n");
    return errors_ > 0 ? static_cast<int>(ExitCode::kConfigError) : 0;
  }

 private:
  std::ostream& out_;
  int errors_ = 0;
  int warnings_ = 0;
};

int validate_deepspeed(const std::string& file, const ConfigRequest& request, const ConfigIo& io) {
  const bool allow = io.variables.get_bool("ACCELERATE_ALLOW_UNKNOWN_KEYS").value_or(false);
  const InspectedDeepSpeedFile found = inspect_deepspeed_file(file, {request.num_processes, allow});
  io.out << "A file of DeepSpeed, for deepspeed_config_file.";
  const auto types = words_of(find_row("distributed_type")->works);
  if (std::find(types.begin(), types.end(), "DEEPSPEED") == types.end()) {
    io.out << " ZeRO is not supported yet: a launch with it is refused.";
  }
  io.out << '\n';
  ProblemPrinter printer(io.out);
  for (const Problem& problem : found.problems) printer.print(problem);
  if (!found.file.autos.empty()) {
    io.out << "auto, set by whoever trains: " << join(found.file.autos, ", ") << '\n';
  }
  if (!found.file.unused.empty()) {
    io.out << "has no part here: " << join(found.file.unused, ", ") << '\n';
  }
  return printer.finish(file);
}

std::unique_ptr<Prompt> make_prompt(const ConfigIo& io) {
  if (io.terminal) return std::make_unique<TerminalPrompt>();
  return std::make_unique<PlainPrompt>(io.in, io.out);
}

void report_saved(const std::string& path, const ConfigIo& io) {
  io.out << "accelerate configuration saved at " << path << '\n'
         << "Start a program with it: accel launch "
         << (path == find_default_config_file(io.variables) ? "" : "--config_file " + shell_quote(path) + " ")
         << "./your_program\n";
}

}  // namespace

int ask_and_save(const ConfigRequest& request, const ConfigIo& io) {
  const std::string path = place_to_save(request, io);
  std::optional<Config> answers;
  try {
    const std::unique_ptr<Prompt> prompt = make_prompt(io);
    if (!exists(path) || request.force ||
        prompt->yes_or_no(concat(shell_quote(path), " exists. Overwrite it?"), false)) {
      answers = ask_config(*prompt, detect_machine(io.variables));
    }
  } catch (const Cancelled& cancelled) {
    io.err << "Cancelled; nothing was saved.\n";
    return cancelled.exit_code;
  }
  if (!answers) {
    io.out << "Left as it was.\n";
    return 0;
  }
  save_config(path, *answers);
  report_saved(path, io);
  return 0;
}

int save_basic(const ConfigRequest& request, const ConfigIo& io) {
  const std::string path = place_to_save(request, io);
  if (exists(path) && !request.force) {
    throw ConfigError({.what = concat(shell_quote(path), " exists"),
                       .expected = {},
                       .got = {},
                       .hint = "Pass --force to overwrite it, or --config_file with another name."});
  }
  save_config(path, basic_config(detect_machine(io.variables), request.mixed_precision));
  report_saved(path, io);
  return 0;
}

int show_config(const ConfigRequest& request, const ConfigIo& io) {
  const auto file = file_to_read(request, io);
  ConfigSources sources{.file = std::nullopt, .environment = io.variables};
  if (file) sources.file = *file;
  const Config config = load_config(sources);
  io.out << "# " << (file ? "Configuration file " + *file : std::string("No configuration file found"))
         << '\n'
         << explain(config);
  io.out.flush();
  for (const Problem& problem : validate(config)) print(io.err, problem);
  return 0;
}

int validate_file(const ConfigRequest& request, const ConfigIo& io) {
  const std::string file = file_that_must_be(request, io);
  if (is_deepspeed_file(file)) return validate_deepspeed(file, request, io);
  const InspectedConfig found = inspect_alone(file, io, request.num_processes);
  ProblemPrinter printer(io.out);
  for (const Problem& problem : found.problems) {
    if (problem.severity == Severity::kError) printer.print(problem);
  }
  for (const Problem& problem : validate(found.config, ValidateFor::kFile)) {
    // Where a value could not be read, what follows from its absence is no second problem.
    const bool follows = std::any_of(found.problems.begin(), found.problems.end(), [&](const Problem& first) {
      return first.severity == Severity::kError && first.key == problem.key;
    });
    if (!follows) printer.print(problem);
  }
  return printer.finish(file);
}

int update_file(const ConfigRequest& request, const ConfigIo& io) {
  const std::string file = file_that_must_be(request, io);
  const InspectedConfig found = inspect_alone(file, io);
  throw_if_errors(found.problems);
  for (Problem problem : found.config.load_warnings) {
    // That this command mends it is no news now.
    if (problem.hint.find("accel config update") != std::string::npos) problem.hint.clear();
    print(io.err, problem);
  }
  save_config(file, found.config);
  io.out << "Successfully updated the configuration file at " << file
         << ".\nKeys are sorted; comments are not kept.\n";
  return 0;
}

}  // namespace accelerate::cli
