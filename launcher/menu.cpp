#include "launcher/menu.h"

#include <algorithm>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

constexpr size_t kMostHelpLines = 4;

std::string folded(std::string_view text) {
  std::string out = to_lower(text);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

}  // namespace

std::vector<std::string> wrap_words(const std::string& text, size_t columns) {
  columns = std::max<size_t>(columns, 1);
  std::vector<std::string> out;
  for (std::string word : split(text, ' ')) {
    if (!out.empty() && out.back().size() + 1 + word.size() <= columns) {
      out.back() += " " + word;
      continue;
    }
    for (; word.size() > columns; word.erase(0, columns)) out.push_back(word.substr(0, columns));
    out.push_back(word);
  }
  return out;
}

Menu::Menu(const std::vector<Choice>& choices, const std::string& default_value) : choices_(choices) {
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].value == default_value) marked_ = i;
  }
}

bool Menu::mark_what_is_called(const std::string& typed) {
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (folded(choices_[i].value).starts_with(folded(typed))) {
      marked_ = i;
      return true;
    }
  }
  const auto number = parse_int(typed);
  if (!number || *number < 1 || *number > static_cast<int64_t>(choices_.size())) return false;
  marked_ = static_cast<size_t>(*number) - 1;
  return true;
}

// Letters add up to the beginning of a name, digits to a number; one that does not fit begins anew.
void Menu::type(char letter) {
  typed_ += letter;
  if (mark_what_is_called(typed_)) return;
  typed_ = letter;
  if (!mark_what_is_called(typed_)) typed_.clear();
}

void Menu::press(const Key& key) {
  const size_t last = choices_.size() - 1;
  Key::Kind kind = key.kind;
  if (kind == Key::Kind::kText && typed_.empty()) {
    if (key.text == 'k') kind = Key::Kind::kUp;
    if (key.text == 'j') kind = Key::Kind::kDown;
  }
  if (kind == Key::Kind::kText) return type(key.text);
  typed_.clear();
  if (kind == Key::Kind::kUp) marked_ = marked_ == 0 ? last : marked_ - 1;
  if (kind == Key::Kind::kDown) marked_ = marked_ == last ? 0 : marked_ + 1;
  if (kind == Key::Kind::kHome) marked_ = 0;
  if (kind == Key::Kind::kEnd) marked_ = last;
}

std::vector<std::string> Menu::lines(size_t columns, size_t rows) const {
  size_t name_width = 0;
  size_t help_width = 0;
  for (const Choice& choice : choices_) {
    name_width = std::max(name_width, choice.value.size());
    help_width = std::max(help_width, choice.help.size());
  }
  const size_t number_width = std::to_string(choices_.size()).size();
  const bool beside = 2 + number_width + 2 + name_width + 2 + help_width <= columns;
  std::vector<std::string> below;
  if (!beside) {
    below = wrap_words(current().help, columns > 4 ? columns - 4 : columns);
    below.resize(std::min({below.size(), kMostHelpLines, rows > 1 ? rows - 1 : 0}));
  }
  const size_t shown = std::clamp<size_t>(rows - below.size(), 1, choices_.size());
  const size_t first = std::min(marked_ > shown / 2 ? marked_ - shown / 2 : 0, choices_.size() - shown);
  std::vector<std::string> out;
  for (size_t i = first; i < first + shown; ++i) {
    const std::string number = std::to_string(i + 1);
    std::string line = concat(i == marked_ ? "> " : "  ", std::string(number_width - number.size(), ' '),
                              number, ") ", choices_[i].value);
    if (beside && help_width > 0)
      line = padded(line, 2 + number_width + 2 + name_width + 2) + choices_[i].help;
    out.push_back(line.substr(0, columns));
  }
  for (const std::string& line : below) out.push_back((columns > 4 ? "    " : "") + line);
  return out;
}

Key TerminalPrompt::next_key() {
  const Key key = terminal_.read_key();
  if (key.kind == Key::Kind::kInterrupt || key.kind == Key::Kind::kEscape) {
    terminal_.write("\n");
    throw Cancelled{key.kind == Key::Kind::kInterrupt ? 130 : 1};
  }
  if (key.kind == Key::Kind::kEndOfInput) {
    terminal_.write("\n");
    throw_input_ended();
  }
  return key;
}

// Writes the list and leaves the cursor on its first line, so that the next one is written over it.
void TerminalPrompt::draw(const std::vector<std::string>& lines) {
  terminal_.write("\r\x1b[J" + join(lines, "\n") + "\r");
  if (lines.size() > 1) terminal_.write(concat("\x1b[", lines.size() - 1, "A"));
}

std::string TerminalPrompt::choose(const std::string& question, const std::vector<Choice>& choices,
                                   const std::string& default_value) {
  say(question);
  Menu menu(choices, default_value);
  for (;;) {
    // One column stays free: a full line would wrap, and the cursor be elsewhere than we think.
    const auto columns = static_cast<size_t>(std::max(terminal_.columns() - 1, 1));
    const auto rows = static_cast<size_t>(std::max(terminal_.rows() - 1, 1));
    draw(menu.lines(columns, rows));
    const Key key = next_key();
    if (key.kind == Key::Kind::kEnter) break;
    menu.press(key);
  }
  terminal_.write("\r\x1b[J");
  say("  " + menu.current().value);
  return menu.current().value;
}

std::string TerminalPrompt::read_line() {
  std::string line;
  for (;;) {
    const Key key = next_key();
    if (key.kind == Key::Kind::kEnter) break;
    if (key.kind == Key::Kind::kText) {
      line += key.text;
      terminal_.write({&key.text, 1});
    }
    const bool all = key.kind == Key::Kind::kClearLine;
    if (!all && key.kind != Key::Kind::kBackspace) continue;
    for (size_t count = all ? line.size() : std::min<size_t>(line.size(), 1); count > 0; --count) {
      line.pop_back();
      terminal_.write("\b \b");
    }
  }
  terminal_.write("\n");
  return trim(line);
}

std::string TerminalPrompt::ask(const std::string& question, const std::string& default_answer,
                                const Check& check) {
  for (;;) {
    const auto lines =
        wrap_words(asked(question, default_answer), static_cast<size_t>(terminal_.columns()) - 1);
    terminal_.write(join(lines, "\n") + " ");
    std::string answer = read_line();
    if (answer.empty()) answer = default_answer;
    const std::string reason = check(answer);
    if (reason.empty()) return answer;
    say("  " + reason);
  }
}

bool TerminalPrompt::yes_or_no(const std::string& question, bool default_answer) {
  const std::vector<Choice> choices = {{"yes", ""}, {"no", ""}};
  return choose(question, choices, default_answer ? "yes" : "no") == "yes";
}

void TerminalPrompt::say(const std::string& line) {
  terminal_.write(join(wrap_words(line, static_cast<size_t>(terminal_.columns())), "\n") + "\n");
}

}  // namespace accelerate::cli
