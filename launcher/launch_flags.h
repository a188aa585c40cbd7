#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerate/config/load.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace accelerate::cli {

/// Flags of `accel launch` that are no keys of the configuration.
struct LaunchFlags {
  std::string config_file;
  int threads_per_process = 0;  ///< 0: not given
  std::string log_dir;
  int tee = -1;  ///< streams to show although there are log files: 1 output, 2 error, 3 both; -1: not given
  int redirects = -1;  ///< streams for the log files alone
  bool no_prefix = false;
  bool quiet = false;
  bool dry_run = false;
  std::optional<int> max_restarts;
  double grace_period_s = 5;
  std::vector<std::string> env;  ///< "KEY=VALUE"
  std::string cxx_flags;         ///< for a program given as source
  std::string nnodes;            ///< "MIN:MAX" or "N"; empty: not given
  int nproc_per_node = 0;        ///< 0: not given
  std::string rdzv_id;
  double connect_timeout_s = 300;
  double heartbeat_timeout_s = 5;
  double last_call_s = 3;
};

/// "2:4" or "3" as least and most; nothing for another text.
std::optional<std::pair<int, int>> parse_machine_range(const std::string& text);

/// The type name of flags that take which output streams are meant, or nothing for both.
inline constexpr const char* kStreams = "STREAMS";

/// Registers the flags above and one flag for every key of the schema, and hands back what was typed.
class LaunchFlagSet {
 public:
  explicit LaunchFlagSet(CLI::App& command);
  LaunchFlagSet(const LaunchFlagSet&) = delete;
  LaunchFlagSet& operator=(const LaunchFlagSet&) = delete;

  const LaunchFlags& flags() const { return flags_; }
  /// Keys given on the command line, as text; the configuration parses them.
  /// @throws ConfigError for a --nnodes that is none, or that contradicts other flags. --nproc_per_node needs
  /// it, unless `machines_known` otherwise.
  std::vector<Override> overrides(bool machines_known = false) const;
  /// True if the command line says how many machines there are.
  bool says_machines() const;
  /// A line for each flag that was given and changes nothing.
  std::vector<std::string> notices() const;
  /// Least and most machines of --nnodes, which must have been given.
  std::pair<int, int> machine_range() const;
  /// The variables of --env. @throws ConfigError for one without '=' or name.
  std::vector<std::pair<std::string, std::string>> environment() const;

 private:
  struct Key {
    std::string name;
    std::string text;
    CLI::Option* option;
  };

  void add_own(CLI::App& command);
  void add_machines(CLI::App& command);
  void add_output(CLI::App& command);
  void add_without_effect(CLI::App& command);
  void add_rdzv_conf(CLI::App& command);
  void take_rdzv_conf(const std::string& text);
  void override_machines(std::vector<Override>& out, bool machines_known) const;
  void add_schema(CLI::App& command);

  LaunchFlags flags_;
  bool multi_gpu_ = false;
  bool tpu_ = false;
  bool no_python_ = false;
  struct WithoutEffect {
    const CLI::Option* option;
    std::string why;
  };
  std::string ignored_;
  std::vector<WithoutEffect> without_effect_;
  std::vector<std::string> notices_;
  std::deque<Key> keys_;  ///< CLI11 keeps references to the texts, so they must not move
};

}  // namespace accelerate::cli
