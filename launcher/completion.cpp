#include "launcher/completion.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <vector>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "launcher/arguments.h"

namespace accelerate::cli {
namespace {

struct Flag {
  std::string name;  ///< with its dashes
  std::string help;
  bool takes_value = false;
};

/// A command and what may follow it.
struct Command {
  std::string path;  ///< "accel config show"
  std::string help;
  std::vector<Command> commands;
  std::vector<Flag> flags;
};

// The first sentence, short enough for a list.
std::string short_help(const std::string& text) {
  constexpr size_t kMost = 60;
  std::string out = text.substr(0, text.find_first_of("\n"));
  if (out.size() > kMost) out = out.substr(0, out.rfind(' ', kMost)) + " ...";
  return out;
}

Command describe(const CLI::App& app, const std::string& path) {
  Command out{.path = path, .help = short_help(app.get_description()), .commands = {}, .flags = {}};
  for (const CLI::App* command : app.get_subcommands(std::function<bool(const CLI::App*)>())) {
    out.commands.push_back(describe(*command, concat(path, " ", command->get_name())));
  }
  for (const CLI::Option* option : app.get_options()) {
    // Those without a group are taken, but not shown.
    if (option->get_group().empty()) continue;
    const bool takes_value = option->get_expected_min() > 0;
    const std::string help = short_help(option->get_description());
    // One name a flag: --config-file is --config_file.
    if (!option->get_lnames().empty()) {
      out.flags.push_back({"--" + option->get_lnames().front(), help, takes_value});
    }
    for (const std::string& name : option->get_snames()) out.flags.push_back({"-" + name, help, takes_value});
  }
  return out;
}

void for_each_command(const Command& command, const std::function<void(const Command&)>& visit) {
  visit(command);
  for (const Command& sub : command.commands) for_each_command(sub, visit);
}

std::string last_word(const std::string& path) {
  return path.substr(path.rfind(' ') + 1);
}

std::string names_of(const std::vector<Command>& commands) {
  std::vector<std::string> out;
  for (const Command& command : commands) out.push_back(last_word(command.path));
  return join(out, " ");
}

std::string names_of(const std::vector<Flag>& flags, bool only_with_value) {
  std::vector<std::string> out;
  for (const Flag& flag : flags) {
    if (!only_with_value || flag.takes_value) out.push_back(flag.name);
  }
  return join(out, " ");
}

// Both bash and zsh: three tables by command, as `case` branches.
std::string tables(const Command& root) {
  std::string out;
  for_each_command(root, [&out](const Command& command) {
    out += concat("    ", shell_quote(command.path),
                  ")\n      subcommands=", shell_quote(names_of(command.commands)),
                  "\n      flags=", shell_quote(names_of(command.flags, false)),
                  "\n      values=", shell_quote(names_of(command.flags, true)), " ;;\n");
  });
  return out;
}

// `@@TABLES@@` and `@@LAUNCH@@` are filled in. '-' and '_' inside flags are the same, as for the program.
constexpr const char* kBash =
    R"script(# Completion of accel for bash. To use it: eval "$(accel completion bash)"
_accel_table() {
  subcommands='' flags='' values=''
  case $1 in
@@TABLES@@  esac
}

# Names may hold blanks.
_accel_files() {
  local IFS=$'\n'
  COMPREPLY=($(compgen -f -- "$1"))
}

_accel() {
  local subcommands flags values word at=1 command=accel
  local current=${COMP_WORDS[COMP_CWORD]}
  COMPREPLY=()
  _accel_table "$command"
  while ((at < COMP_CWORD)); do
    word=${COMP_WORDS[at]}
    if [[ $word == -* ]]; then
      # bash takes --flag=value apart at the '='.
      if [[ ${COMP_WORDS[at + 1]} == '=' ]]; then
        ((at += 2))
      else
        word=${word//-/_} word=${word/#__/--} word=${word/#_/-}
        [[ " $values " == *" $word "* ]] && ((at += 1))
      fi
    elif [[ " $subcommands " == *" $word "* ]]; then
      command+=" $word"
      _accel_table "$command"
    elif [[ $command == @@LAUNCH@@ ]]; then
      break # the program: what follows is its own
    fi
    ((at += 1))
  done
  if ((at > COMP_CWORD)) || ((at < COMP_CWORD)); then
    _accel_files "${current#=}"
  elif [[ $current == -* ]]; then
    local folded=${current//-/_}
    folded=${folded/#__/--} folded=${folded/#_/-}
    [[ $current == -- ]] && folded=--
    COMPREPLY=($(compgen -W "$flags" -- "$folded"))
  elif [[ -n $subcommands ]]; then
    COMPREPLY=($(compgen -W "$subcommands" -- "$current"))
  else
    _accel_files "$current"
  fi
}
complete -o filenames -F _accel accel
)script";

constexpr const char* kZshStart = R"script(#compdef accel
# Completion of accel for zsh. To use it: source <(accel completion zsh)
autoload -U +X bashcompinit && bashcompinit
)script";

std::string filled(const char* script, const Command& root) {
  std::string out = script;
  const auto replace = [&out](const std::string& mark, const std::string& text) {
    out.replace(out.find(mark), mark.size(), text);
  };
  replace("@@LAUNCH@@", shell_quote(concat(root.path, " ", kLaunch)));
  replace("@@TABLES@@", tables(root));
  return out;
}

// fish quotes with backslashes inside single quotes.
std::string fish_quote(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

// True on the command line `path ...`, and not below one of its subcommands.
std::string fish_condition(const Command& command) {
  std::vector<std::string> tests;
  const std::vector<std::string> words = split(command.path, ' ');
  for (size_t i = 1; i < words.size(); ++i) tests.push_back("__fish_seen_subcommand_from " + words[i]);
  if (!command.commands.empty()) {
    tests.push_back("not __fish_seen_subcommand_from " + names_of(command.commands));
  }
  return tests.empty() ? "true" : join(tests, "; and ");
}

std::string fish_script(const Command& root) {
  std::string out = "# Completion of accel for fish. To use it: accel completion fish | source\n";
  for_each_command(root, [&out](const Command& command) {
    const std::string start = concat("complete -c accel -n ", fish_quote(fish_condition(command)));
    for (const Command& sub : command.commands) {
      out += concat(start, " -f -a ", last_word(sub.path), " -d ", fish_quote(sub.help), "\n");
    }
    for (const Flag& flag : command.flags) {
      const bool is_long = flag.name.starts_with("--");
      out += concat(start, is_long ? " -l " : " -s ", flag.name.substr(is_long ? 2 : 1),
                    flag.takes_value ? " -r" : "", " -d ", fish_quote(flag.help), "\n");
    }
  });
  return out;
}

}  // namespace

std::string completion_script(const CLI::App& app, const std::string& shell) {
  const Command root = describe(app, "accel");
  if (shell == "bash") return filled(kBash, root);
  if (shell == "zsh") return kZshStart + filled(kBash, root);
  if (shell == "fish") return fish_script(root);
  throw ConfigError(
      {.what = "accel completion", .expected = "bash, zsh or fish", .got = concat("'", shell, "'")});
}

}  // namespace accelerate::cli
