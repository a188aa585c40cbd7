#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/config/config.h"
#include "accelerate/environment/env_vars.h"

namespace accelerate {

/// A key and the text given for it. The key may be a dotted path, its last part, or the flag's name ("cpu").
struct Override {
  std::string key;
  std::string text;
  std::string shown = {};  ///< what was typed, where it is not the key's own flag: "--multi_gpu"
};

/// Everything that a configuration is made from. Precedence, for each key by itself: code, command line,
/// environment variables, file, what is detected on this machine, default.
struct ConfigSources {
  std::optional<std::filesystem::path> file;  ///< none: no file is read (see find_default_config_file())
  const EnvVars& environment;
  std::vector<Override> command_line = {};
  std::vector<Override> code = {};
  /// Unknown keys become warnings; also set by ACCELERATE_ALLOW_UNKNOWN_KEYS=true.
  bool allow_unknown_keys = false;
  std::optional<MachineFacts> machine = std::nullopt;  ///< none: detect_machine()
};

/// Reads and merges all sources.
/// @throws ConfigError that lists everything wrong with the file, the variables and the overrides at once;
/// each with file, line and key, what would be right and the nearest spelling.
Config load_config(const ConfigSources& sources);

/// A configuration and all that is wrong with it. Where a value could not be used, the default stands.
struct InspectedConfig {
  Config config;
  std::vector<Problem> problems;  ///< of reading only; validate() has the rest
};

/// As load_config(), but hands problems back instead of throwing, for `accel config validate`.
/// @throws ConfigError only where there is nothing to look at: no file, not readable, not YAML.
InspectedConfig inspect_config(const ConfigSources& sources);

/// The file that is read when none is named: $ACCELERATE_CONFIG_FILE (even if it does not exist, so that the
/// error says so), then default_config.yaml or .json in $XDG_CONFIG_HOME/accelerate (~/.config/accelerate),
/// then HF Accelerate's ($HF_HOME/accelerate, ~/.cache/huggingface/accelerate). Nothing if there is none.
std::optional<std::string> find_default_config_file(const EnvVars& variables);

/// Where `accel config` saves when no file is named.
/// @throws ConfigError when neither ACCELERATE_CONFIG_FILE, XDG_CONFIG_HOME nor HOME is set.
std::string default_save_path(const EnvVars& variables);

/// A value as a launch uses it, and where it comes from.
struct ExplainedValue {
  std::string name;    ///< dotted path
  std::string value;   ///< as YAML, or "(not given)"
  std::string origin;  ///< as describe(ValueOrigin)
};

/// Every top-level value and every given nested one, in the schema's order.
std::vector<ExplainedValue> explained_values(const Config& config);

/// The same as text, one a line: "num_processes: 2  # file a.yaml:3".
std::string explain(const Config& config);

/// YAML that HF Accelerate reads too: keys sorted, nothing unset, no empty block; equal values give equal
/// bytes.
std::string write_yaml(const Config& config);

/// The same as JSON, which HF Accelerate reads from files called .json.
std::string write_json(const Config& config);

/// What a configuration is checked for.
enum class ValidateFor {
  kLaunch,  ///< about to start processes with exactly these values
  kFile,    ///< a file by itself: what a command line usually adds may be missing
  kRank,    ///< inside a rank that somebody started: counts and addresses come from its launcher
};

/// Contradictions, features that are asked for and not supported, and what does not fit this machine
/// (config.machine); begins with the warnings of loading. No errors means that a launch may go on.
std::vector<Problem> validate(const Config& config, ValidateFor purpose = ValidateFor::kLaunch);

/// @throws ConfigError listing all errors among `problems`, if there are any.
void throw_if_errors(const std::vector<Problem>& problems);

}  // namespace accelerate
