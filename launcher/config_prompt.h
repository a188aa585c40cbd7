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

/// How `accel config` asks.
class Prompt {
 public:
  virtual ~Prompt() = default;

  /// Says why an answer can't be used; empty if it can.
  using Check = std::function<std::string(const std::string& answer)>;

  /// @throws ConfigError in all four when the input ends before a usable answer.
  virtual std::string ask(const std::string& question, const std::string& default_answer,
                          const Check& check) = 0;
  virtual std::string choose(const std::string& question, const std::vector<Choice>& choices,
                             const std::string& default_value) = 0;
  virtual bool yes_or_no(const std::string& question, bool default_answer) = 0;
  virtual void say(const std::string& line) = 0;
};

/// @throws ConfigError saying that the input ended too early.
[[noreturn]] void throw_input_ended();

/// A question with its default in brackets, if it has one, and a colon.
std::string asked(const std::string& question, const std::string& default_answer);

/// Asks plain questions, one a line: the default stands in brackets and is taken for an empty line, a bad
/// answer is asked again with the reason. For pipes, and terminals that can't move their cursor.
class PlainPrompt final : public Prompt {
 public:
  PlainPrompt(std::istream& in, std::ostream& out) : in_(in), out_(out) {}

  std::string ask(const std::string& question, const std::string& default_answer,
                  const Check& check) override;
  /// By number (from 1) or by name, any case.
  std::string choose(const std::string& question, const std::vector<Choice>& choices,
                     const std::string& default_value) override;
  bool yes_or_no(const std::string& question, bool default_answer) override;
  void say(const std::string& line) override;

 private:
  std::string read_line();

  std::istream& in_;
  std::ostream& out_;
};

}  // namespace accelerate::cli
