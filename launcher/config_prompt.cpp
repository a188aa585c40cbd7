#include "launcher/config_prompt.h"

#include <algorithm>
#include <istream>
#include <ostream>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {

void throw_input_ended() {
  throw ConfigError({.what = "the input ended before all questions were answered; nothing was saved",
                     .expected = {},
                     .got = {},
                     .hint = "To write a file without questions: accel config --default"});
}

std::string asked(const std::string& question, const std::string& default_answer) {
  return default_answer.empty() ? question + ":" : concat(question, " [", default_answer, "]:");
}

std::string PlainPrompt::read_line() {
  std::string line;
  if (std::getline(in_, line)) return trim(line);
  out_ << std::endl;
  throw_input_ended();
}

std::string PlainPrompt::ask(const std::string& question, const std::string& default_answer,
                             const Check& check) {
  for (;;) {
    out_ << asked(question, default_answer) << ' ' << std::flush;
    std::string answer = read_line();
    if (answer.empty()) answer = default_answer;
    const std::string reason = check(answer);
    if (reason.empty()) return answer;
    out_ << "  " << reason << '\n';
  }
}

std::string PlainPrompt::choose(const std::string& question, const std::vector<Choice>& choices,
                                const std::string& default_value) {
  size_t width = 0;
  for (const Choice& choice : choices) width = std::max(width, choice.value.size());
  out_ << question << '\n';
  for (size_t i = 0; i < choices.size(); ++i) {
    out_ << "  " << i + 1 << ") " << choices[i].value << std::string(width - choices[i].value.size(), ' ')
         << "  " << choices[i].help << '\n';
  }
  const auto find = [&](const std::string& answer) -> const Choice* {
    const auto number = parse_int(answer);
    if (number && *number >= 1 && *number <= static_cast<int64_t>(choices.size())) {
      return &choices[static_cast<size_t>(*number) - 1];
    }
    for (const Choice& choice : choices) {
      if (to_lower(choice.value) == to_lower(answer)) return &choice;
    }
    return nullptr;
  };
  const std::string answer = ask("Choice", default_value, [&](const std::string& text) {
    if (find(text) != nullptr) return std::string();
    return concat("'", text, "' is none of these; give a number from 1 to ", choices.size(), " or a name.");
  });
  return find(answer)->value;
}

bool PlainPrompt::yes_or_no(const std::string& question, bool default_answer) {
  const std::string answer =
      ask(question + " yes or no", default_answer ? "yes" : "no", [](const std::string& text) {
        const std::string word = to_lower(text);
        const bool fine = word == "yes" || word == "y" || word == "no" || word == "n";
        return fine ? std::string() : concat("'", text, "' is neither yes nor no.");
      });
  return to_lower(answer).front() == 'y';
}

void PlainPrompt::say(const std::string& line) {
  out_ << line << '\n';
}

}  // namespace accelerate::cli
