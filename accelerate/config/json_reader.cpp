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

  CountingIterator(const char* at, int* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    if (*at_ == '\n') ++*line_;
    ++at_;
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
    // "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error while ..."
    const size_t at = error_.find(": ");
    if (at != std::string::npos) error_ = error_.substr(at + 2);
    return false;
  }

  RawNode root;
  const std::string& error() const { return error_; }

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
      error_ = "too many values for a configuration file";
      return false;
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
      error_ = "nested too deeply for a configuration file";
      return false;
    }
    open_.emplace_back();
    open_.back().kind = kind;
    keys_.emplace_back();
    key_lines_.push_back(0);
    return true;
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
  int count_ = 0;
};

// The parser quotes the last token as a whole.
std::string shortened(const std::string& message) {
  const size_t token = message.find("last read: '");
  if (token == std::string::npos) return excerpt(message);
  return message.substr(0, token) + excerpt(message.substr(token));
}

}  // namespace

RawNode read_json(const std::string& text, const std::string& path) {
  int line = 1;
  int end_line = 1;
  Handler handler(line);
  const char* begin = text.data();
  const bool fine = nlohmann::json::sax_parse(CountingIterator(begin, &line),
                                              CountingIterator(begin + text.size(), &end_line), &handler);
  if (!fine) {
    throw ConfigError({.what = concat(path, ":", line, ": not valid JSON: ", shortened(handler.error())),
                       .expected = {},
                       .got = {},
                       .hint = "Mind missing commas and quotes; JSON has no comments."});
  }
  return std::move(handler.root);
}

bool is_json(const std::string& text) {
  return nlohmann::json::accept(text);
}

}  // namespace accelerate::detail
