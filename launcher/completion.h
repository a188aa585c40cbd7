#pragma once

#include <string>

namespace CLI {
class App;
}

namespace accelerate::cli {

/// A script that teaches a shell the subcommands and flags of `app`, which is asked for them, so that the
/// script knows all there are. Words after the program of `accel launch` complete as files.
/// @param shell "bash", "zsh" or "fish"
/// @throws ConfigError for another shell.
std::string completion_script(const CLI::App& app, const std::string& shell);

}  // namespace accelerate::cli
