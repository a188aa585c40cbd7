#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <vector>

namespace accelerate::cli {

/// One answer among which a question lets the user choose.
struct Choice {
  std::string value;
  std::string help;  ///< one line
};

/// Asks plain questions, one a line: the default stands in brackets and is taken for an empty line, a bad
/// answer is asked again with the reason.
class Prompt {
 public:
  Prompt(std::istream& in, std::ostream& out) : in_(in), out_(out) {}

  /// Says why an answer can't be used; empty if it can.
  using Check = std::function<std::string(const std::string& answer)>;

  /// @throws ConfigError in all four when the input ends before a usable answer.
  std::string ask(const std::string& question, const std::string& default_answer, const Check& check);
  /// By number (from 1) or by name, any case.
  std::string choose(const std::string& question, const std::vector<Choice>& choices,
                     const std::string& default_value);
  bool yes_or_no(const std::string& question, bool default_answer);
  void say(const std::string& line);

 private:
  std::string read_line();

  std::istream& in_;
  std::ostream& out_;
};

}  // namespace accelerate::cli
