#include <stdexcept>

#include "accelerate/checkpoint/pickle_reader_internal.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {

PickleReader::PickleReader(std::span<const std::byte> bytes) : bytes_(bytes) {
  while (true) {
    const auto code = static_cast<unsigned char>(take(1)[0]);
    if (code == '.') break;
    if (!scalar(code) && !container(code) && !stack(code) && !maker(code)) {
      fail(concat("opcode ", static_cast<int>(code), " is not known"));
    }
  }
  if (stack_.size() != 1 || !marks_.empty()) fail("it ends with more or less than one value");
  value_ = stack_.back();
}

void PickleReader::fail(const std::string& what) const {
  throw std::invalid_argument(concat(what, " (byte ", position_, " of the pickle)"));
}

std::span<const std::byte> PickleReader::take(uint64_t count) {
  if (count > bytes_.size() - position_) fail("it is cut off");
  const auto part = bytes_.subspan(position_, count);
  position_ += count;
  return part;
}

uint64_t PickleReader::number(int bytes) {
  uint64_t out = 0;
  int shift = 0;
  for (const std::byte byte : take(static_cast<uint64_t>(bytes))) {
    out |= static_cast<uint64_t>(byte) << shift;
    shift += 8;
  }
  return out;
}

std::string PickleReader::line() {
  std::string out;
  while (true) {
    const char c = static_cast<char>(take(1)[0]);
    if (c == '\n') return out;
    out += c;
  }
}

PickleValue* PickleReader::make(Kind kind, std::string text) {
  PickleValue& value = values_.emplace_back();
  value.kind = kind;
  value.text = std::move(text);
  return &value;
}

PickleValue* PickleReader::integer(Kind kind, int64_t number) {
  PickleValue* value = make(kind);
  value->integer = number;
  return value;
}

PickleValue* PickleReader::pop() {
  if (stack_.empty() || (!marks_.empty() && stack_.size() <= marks_.back())) fail("a value is missing");
  PickleValue* value = stack_.back();
  stack_.pop_back();
  return value;
}

PickleValue& PickleReader::top() {
  PickleValue* value = pop();
  push(value);
  return *value;
}

std::vector<PickleValue*> PickleReader::pop_mark() {
  if (marks_.empty()) fail("a mark is missing");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  marks_.pop_back();
  std::vector<PickleValue*> out(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  return out;
}

void PickleReader::tuple(std::vector<PickleValue*> elements) {
  PickleValue* value = make(Kind::kTuple);
  value->elements = std::move(elements);
  push(value);
}

void PickleReader::set_items(const std::vector<PickleValue*>& pairs) {
  if (pairs.size() % 2 != 0) fail("a key has no value");
  PickleValue& dict = top();
  if (dict.kind != Kind::kDict && dict.kind != Kind::kObject) fail("entries of what is no dict");
  for (size_t i = 0; i < pairs.size(); i += 2) dict.entries.emplace_back(pairs[i], pairs[i + 1]);
}

void PickleReader::object(PickleValue* maker, PickleValue* arguments) {
  if (arguments->kind != Kind::kTuple) fail("arguments that are no tuple");
  PickleValue* value = make(Kind::kObject, maker->kind == Kind::kGlobal ? maker->text : "an object");
  value->elements = arguments->elements;
  push(value);
}

void PickleReader::build() {
  PickleValue* state = pop();
  top().state = state;
}

// More than 64 bits are no number that a checkpoint's reader needs; they stay 0.
void PickleReader::long_integer(uint64_t bytes) {
  const auto part = take(bytes);
  uint64_t out = 0;
  if (bytes > 0 && bytes <= 8) {
    if ((static_cast<unsigned char>(part.back()) & 0x80) != 0) out = ~uint64_t{0};
    for (size_t i = part.size(); i-- > 0;) out = (out << 8) | static_cast<uint64_t>(part[i]);
  }
  push(integer(Kind::kInt, static_cast<int64_t>(out)));
}

void PickleReader::remember(uint64_t index) {
  // Indices count up; one far beyond would only be there to exhaust the memory.
  if (index > memo_.size() + bytes_.size()) fail("an index of the memo is out of range");
  if (index >= memo_.size()) memo_.resize(index + 1, nullptr);
  memo_[index] = &top();
}

void PickleReader::recall(uint64_t index) {
  if (index >= memo_.size() || memo_[index] == nullptr) fail("an index of the memo is not set");
  push(memo_[index]);
}

bool PickleReader::scalar(unsigned char code) {
  switch (code) {
    case 'N':
      push(make(Kind::kNone));
      return true;
    case 0x88:
      push(integer(Kind::kBool, 1));
      return true;
    case 0x89:
      push(integer(Kind::kBool, 0));
      return true;
    case 'K':
      push(integer(Kind::kInt, static_cast<int64_t>(number(1))));
      return true;
    case 'M':
      push(integer(Kind::kInt, static_cast<int64_t>(number(2))));
      return true;
    case 'J':
      push(integer(Kind::kInt, static_cast<int32_t>(number(4))));
      return true;
    case 0x8a:
      long_integer(number(1));
      return true;
    case 0x8b:
      long_integer(number(4));
      return true;
    case 'G':
      take(8), push(make(Kind::kFloat));
      return true;
    case 'X':
      push(make(Kind::kString, text(number(4))));
      return true;
    case 0x8c:
      push(make(Kind::kString, text(number(1))));
      return true;
    case 0x8d:
      push(make(Kind::kString, text(number(8))));
      return true;
    case 'T':
      push(make(Kind::kString, text(number(4))));
      return true;
    case 'U':
      push(make(Kind::kString, text(number(1))));
      return true;
    case 'B':
      push(make(Kind::kBytes, text(number(4))));
      return true;
    case 'C':
      push(make(Kind::kBytes, text(number(1))));
      return true;
    case 0x8e:
    case 0x96:
      push(make(Kind::kBytes, text(number(8))));
      return true;
    default:
      return false;
  }
}

bool PickleReader::container(unsigned char code) {
  switch (code) {
    case ')':
      tuple({});
      return true;
    case 't':
      tuple(pop_mark());
      return true;
    case 0x85:
    case 0x86:
    case 0x87: {
      std::vector<PickleValue*> elements(code - size_t{0x84});
      for (size_t i = elements.size(); i-- > 0;) elements[i] = pop();
      tuple(std::move(elements));
      return true;
    }
    case ']':
      push(make(Kind::kList));
      return true;
    case '}':
      push(make(Kind::kDict));
      return true;
    case 0x8f:
      push(make(Kind::kSet));
      return true;
    case 'l':
    case 0x91: {
      auto elements = pop_mark();
      push(make(code == 'l' ? Kind::kList : Kind::kSet));
      top().elements = std::move(elements);
      return true;
    }
    case 'a': {
      PickleValue* element = pop();
      top().elements.push_back(element);
      return true;
    }
    case 'e':
    case 0x90: {
      const auto elements = pop_mark();
      top().elements.insert(top().elements.end(), elements.begin(), elements.end());
      return true;
    }
    case 'd': {
      const auto pairs = pop_mark();
      push(make(Kind::kDict));
      set_items(pairs);
      return true;
    }
    case 's': {
      PickleValue* value = pop();
      PickleValue* key = pop();
      set_items({key, value});
      return true;
    }
    case 'u':
      set_items(pop_mark());
      return true;
    default:
      return false;
  }
}

bool PickleReader::stack(unsigned char code) {
  switch (code) {
    case 0x80:
      take(1);
      return true;  // the protocol's number
    case 0x95:
      take(8);
      return true;  // a frame's length
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case '0':
      pop();
      return true;
    case '1':
      pop_mark();
      return true;
    case '2':
      push(&top());
      return true;
    case 'q':
      remember(number(1));
      return true;
    case 'r':
      remember(number(4));
      return true;
    case 0x94:
      remember(memo_.size());
      return true;
    case 'h':
      recall(number(1));
      return true;
    case 'j':
      recall(number(4));
      return true;
    default:
      return false;
  }
}

bool PickleReader::maker(unsigned char code) {
  switch (code) {
    case 'c': {
      const std::string module = line();
      push(make(Kind::kGlobal, concat(module, ".", line())));
      return true;
    }
    case 0x93: {
      const PickleValue* name = pop();
      const PickleValue* module = pop();
      push(make(Kind::kGlobal, concat(module->text, ".", name->text)));
      return true;
    }
    case 'Q': {
      PickleValue* id = pop();
      push(make(Kind::kPersistent));
      top().elements = id->elements;
      return true;
    }
    case 'R':
    case 0x81: {
      PickleValue* arguments = pop();
      object(pop(), arguments);
      return true;
    }
    case 0x92: {
      pop();  // named arguments
      PickleValue* arguments = pop();
      object(pop(), arguments);
      return true;
    }
    case 'b':
      build();
      return true;
    default:
      return false;
  }
}

}  // namespace accelerate::detail
