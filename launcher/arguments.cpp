#include "launcher/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "launcher/launch_flags.h"

namespace accelerate::cli {
namespace {

std::string folded(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// How a user calls the (sub)command: "accel config default".
std::string full_name(const CLI::App& app) {
  std::string out = app.get_name();
  for (const CLI::App* parent = app.get_parent(); parent != nullptr; parent = parent->get_parent()) {
    out = parent->get_name() + " " + out;
  }
  return out;
}

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands(std::function<bool(const CLI::App*)>{});
}

const CLI::Option* find_option(const CLI::App& app, const std::string& long_name) {
  const std::string wanted = folded(long_name);
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (folded(name) == wanted) return option;
    }
  }
  return nullptr;
}

// What flags of other launchers become.
std::string hint_for_foreign_flag(const std::string& flag) {
  const std::string name = folded(flag);
  if (name == "_m" || name == "__module") return "There are no Python modules here: give the program itself.";
  if (name == "__rdzv_endpoint") return "Give --main_process_ip and --main_process_port.";
  if (name == "__standalone")
    return "Leave it out: one machine needs no rendezvous, and --main_process_port 0 takes a free port.";
  return {};
}

[[noreturn]] void throw_unknown_flag(const CLI::App& app, const std::string& flag) {
  const std::string foreign = app.get_name() == kLaunch ? hint_for_foreign_flag(flag) : std::string();
  if (!foreign.empty()) throw ConfigError({.what = concat("unknown flag ", flag), .hint = foreign});
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  const std::string command = full_name(app);
  const auto near = nearest_name(flag, known);
  throw ConfigError(
      {.what = concat("unknown flag ", flag, " for `", command, "`"),
       .hint = near ? concat("Did you mean ", *near, "?") : concat("`", command, " --help` lists them.")});
}

[[noreturn]] void throw_unknown_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : subcommands(app)) known.push_back(command->get_name());
  const auto near = nearest_name(word, known);
  const std::string hint = near ? concat("Did you mean `", full_name(app), " ", *near, "`?")
                                : concat("There are: ", join(known, ", "), ".");
  throw ConfigError({.what = concat("unknown command '", word, "' of `", full_name(app), "`"), .hint = hint});
}

// One pass over the words, descending into subcommands.
class Walker {
 public:
  Walker(const CLI::App& app, const std::vector<std::string>& words) : app_(&app), words_(words) {}

  ParsedArguments walk() {
    while (at_ < words_.size()) {
      const std::string& word = words_[at_];
      if (word == "--") {
        ++at_;
        if (!launches()) out_.own.push_back(word);
        take_rest();
      } else if (word.size() > 2 && word.starts_with("--")) {
        long_flag(word);
      } else if (word.size() > 1 && word[0] == '-' && !parse_double(word)) {
        short_flag(word);
      } else if (launches()) {
        take_rest();
      } else {
        plain_word(word);
      }
    }
    return std::move(out_);
  }

 private:
  bool launches() const { return app_->get_name() == kLaunch && app_->get_parent() != nullptr; }

  void take_rest() {
    std::vector<std::string>& target = launches() ? out_.program : out_.own;
    target.insert(target.end(), words_.begin() + static_cast<std::ptrdiff_t>(at_), words_.end());
    at_ = words_.size();
  }

  void long_flag(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const CLI::Option* option = find_option(*app_, name);
    if (option == nullptr) throw_unknown_flag(*app_, "--" + name);
    const std::string spelled = "--" + option->get_lnames().front();
    ++at_;
    if (equals != std::string::npos) {
      if (equals + 1 == word.size() && option->get_expected_min() > 0)
        throw ConfigError(
            {.what = concat("--", name, " needs a value"), .hint = "None stands after the '='."});
      out_.own.push_back(spelled + word.substr(equals));
      return;
    }
    out_.own.push_back(spelled);
    take_value(*option, "--" + name);
  }

  void short_flag(const std::string& word) {
    const CLI::Option* option = app_->get_option_no_throw(word.substr(0, 2));
    if (option == nullptr) throw_unknown_flag(*app_, word);
    ++at_;
    out_.own.push_back(word);
    if (word.size() == 2) take_value(*option, word);
  }

  // "--tee", "--tee 3" and "--tee=3" are all in use; a program of that name is not.
  void take_streams(const CLI::Option& option) {
    const bool mask = at_ < words_.size() && !words_[at_].empty() &&
                      words_[at_].find_first_not_of("0123456789:,") == std::string::npos;
    out_.own.back() = concat("--", option.get_lnames().front(), "=", mask ? words_[at_++] : "3");
  }

  // Joined to its flag, so that CLI11 takes the value for what it is even where it begins with a dash ("-1").
  void take_value(const CLI::Option& option, const std::string& flag) {
    if (option.get_type_name() == kStreams) return take_streams(option);
    if (option.get_expected_min() == 0) return;
    if (at_ == words_.size() || words_[at_] == "--") {
      throw ConfigError({.what = concat(flag, " needs a value"),
                         .hint = concat("`", full_name(*app_), " --help` describes it.")});
    }
    // CLI11 takes "--flag=" for a flag without a value.
    if (flag.starts_with("--") && !words_[at_].empty()) {
      out_.own.back() += "=" + words_[at_++];
    } else {
      out_.own.push_back(words_[at_++]);
    }
  }

  void plain_word(const std::string& word) {
    const auto commands = subcommands(*app_);
    const auto options = app_->get_options();
    const auto command = std::find_if(commands.begin(), commands.end(), [&word](const CLI::App* candidate) {
      return candidate->get_name() == word;
    });
    const bool has_positionals = std::any_of(
        options.begin(), options.end(), [](const CLI::Option* option) { return option->get_positional(); });
    if (command != commands.end()) {
      app_ = *command;
    } else if (!commands.empty() && !has_positionals) {
      throw_unknown_command(*app_, word);
    }
    out_.own.push_back(word);
    ++at_;
  }

  const CLI::App* app_;
  const std::vector<std::string>& words_;
  size_t at_ = 0;
  ParsedArguments out_;
};

}  // namespace

ParsedArguments parse_arguments(const CLI::App& app, const std::vector<std::string>& words) {
  return Walker(app, words).walk();
}

}  // namespace accelerate::cli
