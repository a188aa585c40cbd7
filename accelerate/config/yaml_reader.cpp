// The only file that includes yaml-cpp. It uses the parser's events and not its tree: events carry every key
// with its line, duplicates, quoting and aliases, all of which the tree of release 0.7 loses or resolves in
// its own way.
#include "accelerate/config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <map>
#include <sstream>

#include "accelerate/config/excerpt.h"
#include "accelerate/config/yaml_diagnosis.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

[[noreturn]] void fail(const std::string& path, int line, const std::string& what, const std::string& hint) {
  throw ConfigError({.what = line > 0 ? concat(path, ":", line, ": ", what) : concat(path, ": ", what),
                     .expected = {},
                     .got = {},
                     .hint = hint});
}

[[noreturn]] void fail(const std::string& path, const YamlDiagnosis& found) {
  fail(path, found.line, found.what, found.hint);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
  }
  return lines;
}

int count_nodes(const RawNode& node) {
  int count = 1;
  for (const RawNode& item : node.items) count += count_nodes(item);
  for (const auto& entry : node.entries) count += count_nodes(entry.value);
  return count;
}

class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& text, const std::string& path) : text_(text), path_(path) {}

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) return;
    fail(path_, diagnose_second_document(lines_of(text_), mark.line + 1));
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add({}, mark, anchor); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(path_, mark.line + 1, "an alias stands inside what it names", {});
    add(found->second, mark, YAML::NullAnchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    RawNode node;
    node.kind = RawNode::Kind::kScalar;
    node.text = value;
    node.quoted = tag == "!";
    if (node.quoted) check_quote(mark);
    add(std::move(node), mark, anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(RawNode::Kind::kList, mark, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(RawNode::Kind::kMap, mark, anchor);
  }
  void OnMapEnd() override { close(); }

  RawNode root;

 private:
  struct Open {
    RawNode node;
    YAML::anchor_t anchor = 0;
    YAML::Mark mark;
    bool has_key = false;
    std::string key;
    int key_line = 0;
  };

  // The parser takes the end of the file for a closing quote, and so swallows every key after a forgotten
  // one.
  void check_quote(const YAML::Mark& mark) const {
    size_t at = static_cast<size_t>(mark.pos);
    while (at < text_.size() && (text_[at] == '!' || text_[at] == '&')) {
      while (at < text_.size() && text_[at] != ' ' && text_[at] != '\n') ++at;
      while (at < text_.size() && (text_[at] == ' ' || text_[at] == '\n')) ++at;
    }
    if (at >= text_.size() || (text_[at] != '\'' && text_[at] != '"')) return;
    const char quote = text_[at];
    for (++at; at < text_.size(); ++at) {
      if (quote == '"' && text_[at] == '\\') {
        ++at;
      } else if (text_[at] == quote) {
        if (quote == '"' || at + 1 >= text_.size() || text_[at + 1] != '\'') return;
        ++at;
      }
    }
    fail(path_, mark.line + 1, concat("the quote (", quote, ") that opens here is never closed"),
         "Close it on the same line.");
  }

  void open(RawNode::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    open_.emplace_back();
    open_.back().node.kind = kind;
    open_.back().node.line = mark.line + 1;
    open_.back().anchor = anchor;
    open_.back().mark = mark;
  }

  void close() {
    Open done = std::move(open_.back());
    open_.pop_back();
    if (done.node.kind == RawNode::Kind::kMap) merge(done.node);
    const YAML::Mark mark = done.mark;
    add(std::move(done.node), mark, done.anchor);
  }

  // "<<: *base" takes the keys of `base` that the map itself lacks.
  void merge(RawNode& map) {
    std::vector<RawNode::Entry> own;
    std::vector<RawNode> bases;
    for (auto& entry : map.entries) {
      if (entry.key != "<<") {
        own.push_back(std::move(entry));
      } else if (entry.value.kind == RawNode::Kind::kList) {
        for (auto& item : entry.value.items) bases.push_back(std::move(item));
      } else {
        bases.push_back(std::move(entry.value));
      }
    }
    for (auto& base : bases) {
      if (base.kind != RawNode::Kind::kMap) fail(path_, map.line, "'<<' takes a map (<<: *name)", {});
      for (auto& entry : base.entries) {
        bool known = false;
        for (const auto& have : own) known = known || have.key == entry.key;
        if (!known) own.push_back(std::move(entry));
      }
    }
    map.entries = std::move(own);
  }

  void add(RawNode node, const YAML::Mark& mark, YAML::anchor_t anchor) {
    count_ += count_nodes(node);
    if (count_ > 10 * kMaxNodes) {
      fail(path_, mark.line + 1, "more values than a configuration file can have", {});
    }
    node.line = mark.line + 1;
    if (anchor != YAML::NullAnchor) anchors_[anchor] = node;
    if (open_.empty()) {
      root = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == RawNode::Kind::kList) {
      parent.node.items.push_back(std::move(node));
    } else if (!parent.has_key) {
      take_key(parent, node);
    } else {
      parent.node.entries.push_back({parent.key, parent.key_line, std::move(node)});
      parent.has_key = false;
    }
  }

  void take_key(Open& parent, const RawNode& node) {
    if (node.kind == RawNode::Kind::kMap || node.kind == RawNode::Kind::kList) {
      const auto lines = lines_of(text_);
      const size_t index = static_cast<size_t>(node.line - 1);
      const std::string line = index < lines.size() ? lines[index] : "";
      if (line.find("{{") != std::string::npos) fail(path_, diagnose_yaml(lines, node.line, {}));
      fail(path_, node.line, concat("a key must be a plain word, not '", excerpt(line), "'"), {});
    }
    parent.has_key = true;
    parent.key = node.kind == RawNode::Kind::kNull ? "null" : node.text;
    parent.key_line = node.line;
  }

  const std::string& text_;
  const std::string& path_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, RawNode> anchors_;
  int documents_ = 0;
  int count_ = 0;
};

void check_tabs(const std::vector<std::string>& lines, const std::string& path) {
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t first = lines[i].find_first_not_of(" \t");
    if (first == std::string::npos || lines[i][first] == '#') continue;
    if (lines[i].find('\t') >= first) continue;
    fail(path, static_cast<int>(i) + 1,
         concat("a tab is used for indentation, before '", excerpt(lines[i]), "'; YAML allows blanks only"),
         concat("Replace the tabs, with blanks or with nothing: sed -i 's/^\\t*//' ", shell_quote(path)));
  }
}

}  // namespace

RawNode read_yaml(const std::string& text, const std::string& path) {
  const std::vector<std::string> lines = lines_of(text);
  check_tabs(lines, path);
  Builder builder(text, path);
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& error) {
    fail(path, diagnose_yaml(lines, error.mark.line + 1, error.msg));
  }
  return std::move(builder.root);
}

}  // namespace accelerate::detail
