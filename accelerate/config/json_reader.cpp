#include "accelerate/config/json_reader.h"

#include <iterator>
#include <nlohmann/json.hpp>

#include "accelerate/config/excerpt.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

// Walks a text and counts the lines it has passed, since the parser's events carry no position.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  /// `line` counts line ends passed, `reached` follows the furthest place.
  CountingIterator(const char* at, int* line, const char** reached)
      : at_(at), line_(line), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    *reached_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  int* line_;
  const char** reached_;
};

constexpr int kMaxDepth = 100;

class Handler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Handler(const int& line) : line_(line) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add_scalar(value ? "true" : "false", false); }
  bool number_integer(number_integer_t value) override { return add_scalar(std::to_string(value), false); }
  bool number_unsigned(number_unsigned_t value) override { return add_scalar(std::to_string(value), false); }
  bool number_float(number_float_t, const string_t& text) override { return add_scalar(text, false); }
  bool string(string_t& text) override { return add_scalar(text, true); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(RawNode::Kind::kMap); }
  bool start_array(std::size_t) override { return open(RawNode::Kind::kList); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    keys_.back() = name;
    key_lines_.back() = line_;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    error_ = error.what();
    // "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error while ...", or without
    // the place: "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    for (const char* end : {"] ", ": "}) {
      const size_t at = error_.find(end);
      if (at != std::string::npos && (*end == ']' || error_.starts_with("parse error at"))) {
        error_ = error_.substr(at + 2);
      }
    }
    return false;
  }

  RawNode root;
  const std::string& error() const { return error_; }
  /// The text is JSON, but not one that a configuration needs.
  bool refused() const { return refused_; }

 private:
  bool add_scalar(std::string text, bool quoted) {
    RawNode node;
    node.kind = RawNode::Kind::kScalar;
    node.text = std::move(text);
    node.quoted = quoted;
    return add(std::move(node));
  }
  bool add(RawNode node) {
    if (++count_ > kMaxNodes) {
      return refuse("too many values for a configuration file");
    }
    // A number ends only at the character after it, which may be the next line's: an entry's line is its
    // key's.
    node.line = open_.empty() || key_lines_.back() == 0 ? line_ : key_lines_.back();
    if (open_.empty()) {
      root = std::move(node);
    } else if (open_.back().kind == RawNode::Kind::kMap) {
      open_.back().entries.push_back({keys_.back(), key_lines_.back(), std::move(node)});
    } else {
      open_.back().items.push_back(std::move(node));
    }
    return true;
  }
  bool open(RawNode::Kind kind) {
    if (open_.size() >= kMaxDepth) {
      return refuse("nested too deeply for a configuration file");
    }
    open_.emplace_back();
    open_.back().kind = kind;
    keys_.emplace_back();
    key_lines_.push_back(0);
    return true;
  }
  bool refuse(const char* why) {
    error_ = why;
    refused_ = true;
    return false;
  }
  bool close() {
    RawNode node = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    key_lines_.pop_back();
    return add(std::move(node));
  }

  const int& line_;
  std::vector<RawNode> open_;
  std::vector<std::string> keys_;
  std::vector<int> key_lines_;
  std::string error_;
  bool refused_ = false;
  int count_ = 0;
};

// The parser quotes the last token as a whole.
std::string shortened(const std::string& message) {
  const size_t token = message.find("last read: '");
  if (token == std::string::npos) return excerpt(message);
  return message.substr(0, token) + excerpt(message.substr(token));
}

// What is often at hand where a parser stops; `at` is how far it has read.
std::string hint_of(std::string_view text, size_t at) {
  const std::string start = trim(text);
  if (start.front() != '{' && start.front() != '[')
    return "Its name says JSON; YAML belongs into a file called .yaml.";
  const std::string_view read = text.substr(0, at);
  const size_t last = read.find_last_not_of(" \t\r\n");
  const char stopped = last == std::string_view::npos ? ' ' : read[last];
  const size_t before = last == 0 || last == std::string_view::npos
                            ? std::string_view::npos
                            : read.find_last_not_of(" \t\r\n", last - 1);
  if ((stopped == '}' || stopped == ']') && before != std::string_view::npos && read[before] == ',') {
    return "Remove the comma before it.";
  }
  if (stopped >= '0' && stopped <= '9') return "Is the number too large, or a comma missing?";
  if (stopped == '/' || stopped == '#') return "JSON has no comments.";
  if (stopped == 'T' || stopped == 'F') return "JSON writes true and false in small letters.";
  if (stopped == 'N') return "JSON writes null, and has no NaN.";
  if (stopped == '\'') return "JSON has double quotes only.";
  if (stopped == '"') return "Is a comma missing before it?";
  return "Mind missing commas and quotes; JSON has no comments.";
}

}  // namespace

RawNode read_json(const std::string& text, const std::string& path) {
  int line = 1;
  Handler handler(line);
  const char* begin = text.data();
  const char* reached = begin;
  const bool fine =
      nlohmann::json::sax_parse(CountingIterator(begin, &line, &reached),
                                CountingIterator(begin + text.size(), &line, &reached), &handler);
  if (!fine && handler.refused()) {
    throw ConfigError({.what = concat(path, ":", line, ": ", handler.error())});
  }
  if (!fine) {
    throw ConfigError({.what = concat(path, ":", line, ": not valid JSON: ", shortened(handler.error())),
                       .expected = {},
                       .got = {},
                       .hint = hint_of(text, static_cast<size_t>(reached - begin))});
  }
  return std::move(handler.root);
}

bool is_json(const std::string& text) {
  return nlohmann::json::accept(text);
}

}  // namespace accelerate::detail
