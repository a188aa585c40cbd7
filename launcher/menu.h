#pragma once

#include <string>
#include <vector>

#include "launcher/config_prompt.h"
#include "launcher/terminal.h"

namespace accelerate::cli {

/// Thrown when the user gives up: Esc or Ctrl-C.
struct Cancelled {
  int exit_code;  ///< 130 for Ctrl-C, 1 for Esc
};

/// A list with one line marked. Knows nothing of terminals: keys go in, lines come out.
class Menu {
 public:
  /// `choices` must outlive the menu and not be empty.
  Menu(const std::vector<Choice>& choices, const std::string& default_value);

  /// Moves the mark: arrows, j and k, Home and End, the number of a choice, the first letters of its name.
  void press(const Key& key);
  /// The marked choice.
  const Choice& current() const { return choices_[marked_]; }
  /// The list in at most `rows` lines of at most `columns` characters. Where the explanations do not fit
  /// beside the names, that of the marked choice stands below the list.
  std::vector<std::string> lines(size_t columns, size_t rows) const;

 private:
  void type(char letter);
  bool mark_what_is_called(const std::string& typed);

  const std::vector<Choice>& choices_;
  size_t marked_ = 0;
  std::string typed_;
};

/// Words of `text` on lines of at most `columns` characters.
std::vector<std::string> wrap_words(const std::string& text, size_t columns);

/// Asks on a terminal: menus for choices, a line to type for the rest. Esc and Ctrl-C throw Cancelled.
class TerminalPrompt final : public Prompt {
 public:
  std::string ask(const std::string& question, const std::string& default_answer,
                  const Check& check) override;
  std::string choose(const std::string& question, const std::vector<Choice>& choices,
                     const std::string& default_value) override;
  bool yes_or_no(const std::string& question, bool default_answer) override;
  void say(const std::string& line) override;

 private:
  Key next_key();
  std::string read_line();
  void draw(const std::vector<std::string>& lines);

  Terminal terminal_;
};

}  // namespace accelerate::cli
