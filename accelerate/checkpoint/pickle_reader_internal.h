#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Note [Pickles]
// A pickle is a program that builds objects. LibTorch's own reader for them gives up at what torch.save()
// writes most often, a module's state_dict (an OrderedDict with an attribute), does not check sizes against
// storages, and knows no class but its own. This one builds plain data instead of objects: a call or an
// object is kept as its name with its arguments, entries and state, and nothing is ever called. Who reads the
// data decides which names it knows; a checkpoint whose "args" are of a strange class still gives its
// weights. Format: Lib/pickletools.py of CPython; opcodes of protocols 2 to 5, which torch.save() can write.
namespace accelerate::detail {

struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kBytes,
    kTuple,
    kList,
    kDict,
    kSet,
    kGlobal,      ///< a class or function by its name; never looked up
    kPersistent,  ///< what the file keeps elsewhere: torch's storages. args: its tuple
    kObject       ///< what a call or class would have made
  };

  Kind kind = Kind::kNone;
  int64_t integer = 0;                 ///< kInt, kBool
  std::string text;                    ///< kString, kGlobal ("module.name"), kObject: name of what makes it
  std::vector<PickleValue*> elements;  ///< of a tuple, list or set; arguments of an object
  std::vector<std::pair<PickleValue*, PickleValue*>> entries;  ///< of a dict, or an object that is like one
  PickleValue* state = nullptr;                                ///< of an object, if it has any
};

/// Reads one pickle. Owns its values; references between them may form cycles.
class PickleReader {
 public:
  /// @throws std::invalid_argument saying what is wrong, at which byte.
  explicit PickleReader(std::span<const std::byte> bytes);
  PickleReader(const PickleReader&) = delete;
  PickleReader& operator=(const PickleReader&) = delete;

  const PickleValue& value() const { return *value_; }

 private:
  using Kind = PickleValue::Kind;

  [[noreturn]] void fail(const std::string& what) const;
  std::span<const std::byte> take(uint64_t count);
  uint64_t number(int bytes);
  std::string line();
  std::string text(uint64_t bytes) {
    const auto part = take(bytes);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  PickleValue* make(Kind kind, std::string text = {});
  PickleValue* integer(Kind kind, int64_t value);
  void push(PickleValue* value) { stack_.push_back(value); }
  PickleValue* pop();
  PickleValue& top();
  std::vector<PickleValue*> pop_mark();
  void tuple(std::vector<PickleValue*> elements);
  void set_items(const std::vector<PickleValue*>& pairs);
  void object(PickleValue* maker, PickleValue* arguments);
  void build();
  void long_integer(uint64_t bytes);
  void remember(uint64_t index);
  void recall(uint64_t index);

  // Each takes the opcodes of its kind and says whether this was one.
  bool scalar(unsigned char code);
  bool container(unsigned char code);
  bool stack(unsigned char code);
  bool maker(unsigned char code);

  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  std::deque<PickleValue> values_;
  std::vector<PickleValue*> stack_;
  std::vector<size_t> marks_;
  std::vector<PickleValue*> memo_;
  PickleValue* value_ = nullptr;
};

}  // namespace accelerate::detail
