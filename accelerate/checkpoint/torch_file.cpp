#include "accelerate/checkpoint/torch_file.h"

#include <ATen/Functions.h>
#include <caffe2/serialize/inline_container.h>
#include <caffe2/serialize/read_adapter_interface.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "accelerate/checkpoint/pickle_reader_internal.h"
#include "accelerate/core/error.h"
#include "accelerate/core/file_mapping.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using detail::PickleReader;
using detail::PickleValue;
using Kind = PickleValue::Kind;

constexpr size_t kKeysInMessage = 8;
constexpr int kMaxDepth = 100;  // of modules within modules; a pickle may hold itself

struct DtypeName {
  const char* dtype;    // torch.float32
  const char* storage;  // torch.FloatStorage
  at::ScalarType type;
};
constexpr std::array<DtypeName, 17> kDtypes = {{{"float64", "DoubleStorage", at::kDouble},
                                                {"float32", "FloatStorage", at::kFloat},
                                                {"float16", "HalfStorage", at::kHalf},
                                                {"bfloat16", "BFloat16Storage", at::kBFloat16},
                                                {"int64", "LongStorage", at::kLong},
                                                {"int32", "IntStorage", at::kInt},
                                                {"int16", "ShortStorage", at::kShort},
                                                {"int8", "CharStorage", at::kChar},
                                                {"uint8", "ByteStorage", at::kByte},
                                                {"bool", "BoolStorage", at::kBool},
                                                {"complex64", "ComplexFloatStorage", at::kComplexFloat},
                                                {"complex128", "ComplexDoubleStorage", at::kComplexDouble},
                                                {"float8_e4m3fn", "", at::kFloat8_e4m3fn},
                                                {"float8_e5m2", "", at::kFloat8_e5m2},
                                                {"uint16", "", at::kUInt16},
                                                {"uint32", "", at::kUInt32},
                                                {"uint64", "", at::kUInt64}}};

std::optional<at::ScalarType> dtype_of(const std::string& global) {
  for (const DtypeName& known : kDtypes) {
    if (global == concat("torch.", known.dtype)) return known.type;
    if (*known.storage != '\0' && global == concat("torch.", known.storage)) return known.type;
  }
  return std::nullopt;
}

// How to get a safetensors file from one that only Python can read. `weights` is Python for the dict of `x`.
std::string conversion(const std::string& path, const std::string& weights, bool trusted = false) {
  return concat("Convert it with Python", trusted ? ", if you trust whoever wrote it" : "",
                ": python3 -c \"import torch, safetensors.torch as s; x = torch.load('", path,
                "', map_location='cpu'", trusted ? ", weights_only=False" : "",
                "); s.save_file({k: v.detach().clone().contiguous() for k, v in ", weights,
                ".items()}, 'model.safetensors')\"");
}

[[noreturn]] void damaged(const std::string& path, const std::string& what) {
  throw CheckpointError({.what = concat(path, " is no complete file of torch.save: ", what),
                         .hint = "It may have been cut off while it was copied; take another copy."});
}

// The mapped file as LibTorch's reader of zip files wants it.
class MappedInput final : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit MappedInput(std::shared_ptr<FileMapping> mapping) : mapping_(std::move(mapping)) {}
  size_t size() const override { return mapping_->bytes().size(); }
  size_t read(uint64_t position, void* out, size_t count, const char*) const override {
    if (position >= size()) return 0;
    count = std::min<size_t>(count, size() - position);
    std::memcpy(out, mapping_->bytes().data() + position, count);
    return count;
  }

 private:
  std::shared_ptr<FileMapping> mapping_;
};

// The zip file: its pickle and its storages.
class TorchZip {
 public:
  TorchZip(const std::string& path, std::shared_ptr<FileMapping> mapping)
      : path_(path), mapping_(std::move(mapping)), reader_(std::make_shared<MappedInput>(mapping_)) {}

  bool has(const std::string& record) { return reader_.hasRecord(record); }

  std::string text(const std::string& record) {
    const auto [data, size] = reader_.getRecord(record);
    return {static_cast<const char*>(data.get()), size};
  }

  // The memory of a storage, the same for the same key.
  const at::Storage& storage(const std::string& key) {
    at::Storage& place = storages_[key];
    if (place.unsafeGetStorageImpl() == nullptr) place = read(concat("data/", key));
    return place;
  }

  const std::string& path() const { return path_; }

 private:
  at::Storage read(const std::string& record) {
    if (!has(record)) damaged(path_, concat("'", record, "' is missing"));
    const size_t size = reader_.getRecordSize(record);
    const size_t header = reader_.getRecordHeaderOffset(record), begin = reader_.getRecordOffset(record);
    const size_t end = mapping_->bytes().size();
    if (header + 10 > end || begin > end) damaged(path_, concat("'", record, "' lies past the end"));
    // Bytes 8 and 9 of an entry's header: how it is compressed.
    const bool stored =
        mapping_->bytes()[header + 8] == std::byte{0} && mapping_->bytes()[header + 9] == std::byte{0};
    std::byte* const data = mapping_->bytes().data() + begin;
    if (!stored || reinterpret_cast<uintptr_t>(data) % alignof(std::max_align_t) != 0) {
      auto [copy, copied] = reader_.getRecord(record);
      return {c10::Storage::use_byte_size_t(), copied, std::move(copy), nullptr, /*resizable=*/false};
    }
    if (size > end - begin) damaged(path_, concat("'", record, "' lies past the end"));
    auto* owner = new std::shared_ptr<FileMapping>(mapping_);  // deleted with the last tensor
    return {c10::Storage::use_byte_size_t(), size,
            at::DataPtr(
                data, owner, [](void* held) { delete static_cast<std::shared_ptr<FileMapping>*>(held); },
                at::Device(at::kCPU)),
            nullptr, /*resizable=*/false};
  }

  std::string path_;
  std::shared_ptr<FileMapping> mapping_;
  caffe2::serialize::PyTorchStreamReader reader_;
  std::map<std::string, at::Storage> storages_;
};

bool is_object(const PickleValue& value, std::string_view maker) {
  return value.kind == Kind::kObject && value.text == maker;
}

bool is_dict(const PickleValue& value) {
  return value.kind == Kind::kDict || is_object(value, "collections.OrderedDict") ||
         is_object(value, "collections.defaultdict");
}

// A module of torch::save(): an object of the class __torch__.Module or, for distinction,
// __torch__.___torch_mangle_7.Module.
bool is_archive(const PickleValue& value) {
  return value.kind == Kind::kObject && value.text.starts_with("__torch__.") &&
         value.text.ends_with(".Module") && value.state != nullptr && is_dict(*value.state) &&
         (value.text == "__torch__.Module" || value.text.starts_with("__torch__.___torch_mangle_"));
}

// What a wrapper around a value holds: a parameter's tensor, a tensor with attributes, a tagged container.
const PickleValue& unwrap(const PickleValue& value) {
  const PickleValue* at = &value;
  for (int depth = 0; depth < kMaxDepth && at->kind == Kind::kObject && !at->elements.empty(); ++depth) {
    if (at->text != "torch._utils._rebuild_parameter" &&
        at->text != "torch._utils._rebuild_parameter_with_state" &&
        at->text != "torch.jit._pickle.restore_type_tag") {
      break;
    }
    at = at->elements[0];
  }
  return *at;
}

// The name of what would make a tensor from its storage, and the arguments.
struct TensorParts {
  std::string maker;
  const std::vector<PickleValue*>* arguments = nullptr;
};

TensorParts tensor_parts(const PickleValue& wrapped) {
  const PickleValue& value = unwrap(wrapped);
  if (value.kind != Kind::kObject) return {};
  TensorParts out{value.text, &value.elements};
  if (value.text == "torch._tensor._rebuild_from_type_v2" && value.elements.size() >= 3) {
    const PickleValue &maker = *value.elements[0], &type = *value.elements[1];
    if (type.text != "torch.Tensor" && type.text != "torch.nn.parameter.Parameter" &&
        type.text != "torch.nn.parameter.Buffer") {
      return {};
    }
    out = {maker.text, &value.elements[2]->elements};
  }
  const bool known =
      out.maker == "torch._utils._rebuild_tensor_v2" || out.maker == "torch._utils._rebuild_tensor_v3";
  return known ? out : TensorParts{};
}

bool is_tensor(const PickleValue& value) {
  return tensor_parts(value).arguments != nullptr;
}

std::string describe(const PickleValue& value) {
  if (is_tensor(value)) return "a tensor";
  if (is_archive(unwrap(value))) return "a module of torch::save()";
  const PickleValue& plain = unwrap(value);
  if (is_dict(plain)) {
    const bool tensors = std::all_of(plain.entries.begin(), plain.entries.end(),
                                     [](const auto& entry) { return is_tensor(*entry.second); });
    return concat("a dict of ", plain.entries.size(), tensors ? " tensors" : " entries");
  }
  switch (plain.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return plain.integer != 0 ? "True" : "False";
    case Kind::kInt:
      return "an int";
    case Kind::kFloat:
      return "a float";
    case Kind::kString:
      return "a string";
    case Kind::kBytes:
      return "bytes";
    case Kind::kTuple:
      return concat("a tuple of ", plain.elements.size());
    case Kind::kList:
      return concat("a list of ", plain.elements.size());
    case Kind::kSet:
      return "a set";
    case Kind::kGlobal:
      return plain.text;
    case Kind::kPersistent:
      return "a storage";
    default:
      return concat("an object of ", plain.text);
  }
}

std::string key_text(const PickleValue& key) {
  if (key.kind == Kind::kString) return key.text;
  return key.kind == Kind::kInt ? concat(key.integer) : describe(key);
}

std::string list_entries(const PickleValue& dict) {
  std::vector<std::string> out;
  for (const auto& [key, value] : dict.entries) {
    if (out.size() == kKeysInMessage) {
      out.push_back(concat("and ", dict.entries.size() - out.size(), " more"));
      break;
    }
    out.push_back(concat("'", key_text(*key), "' (", describe(*value), ")"));
  }
  return out.empty() ? "an empty dict" : join(out, ", ");
}

std::vector<int64_t> integers(const PickleValue& tuple) {
  std::vector<int64_t> out;
  for (const PickleValue* element : tuple.elements) {
    if (element->kind != Kind::kInt || element->integer < 0) throw std::invalid_argument("a negative size");
    out.push_back(element->integer);
  }
  return out;
}

// The elements that a tensor reaches in its storage, or nothing where that is no number.
std::optional<int64_t> reach(int64_t offset, const std::vector<int64_t>& sizes,
                             const std::vector<int64_t>& strides) {
  int64_t last = offset, numel = 1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t step = 0;
    if (sizes[i] == 0) return 0;
    if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
        __builtin_add_overflow(last, step, &last) || __builtin_mul_overflow(numel, sizes[i], &numel)) {
      return std::nullopt;
    }
  }
  if (last == std::numeric_limits<int64_t>::max()) return std::nullopt;
  return last + 1;
}

// Arguments of _rebuild_tensor_v2: storage, offset, sizes, strides, requires_grad, hooks, and perhaps a dict
// that says "conj" or "neg"; v3 has the dtype before that.
at::Tensor make_tensor(TorchZip& zip, const std::string& name, const PickleValue& value) {
  const TensorParts parts = tensor_parts(value);
  const std::vector<PickleValue*>& arguments = *parts.arguments;
  const bool v3 = parts.maker.ends_with("_v3");
  const auto bad = [&](const std::string& what) {
    damaged(zip.path(), concat("tensor '", name, "' ", what));
  };
  if (arguments.size() < (v3 ? 7 : 6) || arguments[0]->kind != Kind::kPersistent ||
      arguments[0]->elements.size() < 5 || arguments[1]->kind != Kind::kInt) {
    bad("is not written as torch.save() does");
  }
  const auto& storage_parts = arguments[0]->elements;  // "storage", type, key, device, numel
  const auto dtype = dtype_of(v3 ? arguments[6]->text : storage_parts[1]->text);
  if (!dtype.has_value()) {
    throw CheckpointError({.what = concat(zip.path(), ": tensor '", name, "'"),
                           .expected = "a dtype that this library reads",
                           .got = v3 ? arguments[6]->text : storage_parts[1]->text});
  }
  const size_t metadata = v3 ? 7 : 6;
  if (arguments.size() > metadata && is_dict(*arguments[metadata])) {
    for (const auto& [flag, on] : arguments[metadata]->entries) {
      if (on->integer == 0) continue;
      throw CheckpointError(
          {.what = concat(zip.path(), ": tensor '", name, "' is stored with its ", flag->text, " bit set"),
           .expected = "plain numbers",
           .hint = "Save tensor.resolve_conj().resolve_neg() instead."});
    }
  }
  const int64_t offset = arguments[1]->integer;
  const std::vector<int64_t> sizes = integers(*arguments[2]), strides = integers(*arguments[3]);
  if (sizes.size() != strides.size() || offset < 0) bad("has sizes and strides that do not fit");
  const auto needed = reach(offset, sizes, strides);
  if (needed == 0) return at::empty(sizes, at::TensorOptions(*dtype));
  const at::Storage& storage = zip.storage(storage_parts[2]->text);
  if (!needed.has_value() || static_cast<uint64_t>(*needed) > storage.nbytes() / c10::elementSize(*dtype)) {
    bad("does not fit its storage");
  }
  return at::empty({0}, at::TensorOptions(*dtype)).set_(storage, offset, sizes, strides);
}

// The dict's tensors.
TensorDict make_dict(TorchZip& zip, const PickleValue& dict, const std::string& key) {
  TensorDict out;
  for (const auto& [name, value] : dict.entries) {
    if (name->kind == Kind::kString && is_tensor(*value)) {
      out[name->text] = make_tensor(zip, name->text, *value);
      continue;
    }
    // One level down there may be what was meant.
    ErrorText text{.what = concat(zip.path(), key.empty() ? "" : concat(": '", key, "'"),
                                  " holds more than named tensors"),
                   .expected = "a dict of tensors",
                   .got = list_entries(dict)};
    const auto inner = std::find_if(dict.entries.begin(), dict.entries.end(), [](const auto& entry) {
      return is_dict(unwrap(*entry.second)) && entry.first->kind == Kind::kString;
    });
    if (inner != dict.entries.end()) {
      text.hint =
          concat("Say which: key = \"", key.empty() ? "" : concat(key, "."), inner->first->text, "\".");
    } else {
      text.hint = conversion(zip.path(), "x", true) + " with the entries that are tensors.";
    }
    throw CheckpointError(text);
  }
  return out;
}

// The tensors of a module of torch::save() and those of its children.
void add_archive(TorchZip& zip, const PickleValue& module, const std::string& prefix, int depth,
                 TensorDict& out) {
  if (depth > kMaxDepth) damaged(zip.path(), "a module holds itself");
  for (const auto& [key, value] : module.state->entries) {
    const std::string name = prefix + key->text;
    if (is_tensor(*value)) {
      out[name] = make_tensor(zip, name, *value);
    } else if (is_archive(*value)) {
      add_archive(zip, *value, name + ".", depth + 1, out);
    } else if (value->kind != Kind::kNone) {  // an undefined tensor
      throw CheckpointError({.what = concat(zip.path(), ": '", name, "' is no tensor"),
                             .expected = "what torch::save(module, path) writes",
                             .got = list_entries(*module.state),
                             .hint = "Read an optimizer or an archive of your own with torch::load() or "
                                     "torch::serialize::InputArchive."});
    }
  }
}

// What `key` names within a dict: an entry, or with dots one of an entry.
const PickleValue* find(const PickleValue& dict, std::string_view key) {
  for (const auto& [name, value] : dict.entries) {
    if (key_text(*name) == key) return &unwrap(*value);
  }
  for (size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.', dot + 1)) {
    for (const auto& [name, value] : dict.entries) {
      if (key_text(*name) != key.substr(0, dot) || !is_dict(unwrap(*value))) continue;
      if (const auto* found = find(unwrap(*value), key.substr(dot + 1))) return found;
    }
  }
  return nullptr;
}

[[noreturn]] void no_dict(const std::string& path, const std::string& key, const PickleValue& value) {
  ErrorText text{.what = concat(path, key.empty() ? "" : concat(": '", key, "'")),
                 .expected = "a dict of tensors",
                 .got = describe(value)};
  if (value.kind == Kind::kObject && value.text.starts_with("__torch__.")) {
    text.got = concat("TorchScript (", value.text, ")");
    text.hint = concat(
        "Convert it with Python: python3 -c \"import torch, safetensors.torch as s; "
        "s.save_file({k: v.detach().clone().contiguous() for k, v in torch.jit.load('",
        path, "', map_location='cpu').state_dict().items()}, 'model.safetensors')\"");
  } else if (is_tensor(value)) {
    text.hint = "Save it with a name: torch.save({\"name\": tensor}, path).";
  } else if (value.kind == Kind::kList || value.kind == Kind::kTuple) {
    text.hint = "Save its tensors with names: torch.save({\"name\": tensor, ...}, path).";
  } else if (value.kind == Kind::kObject) {
    text.hint = conversion(path, "x.state_dict()", true);
  }
  throw CheckpointError(text);
}

TensorDict read_zip(TorchZip& zip, const std::string& key) {
  const std::string& path = zip.path();
  if (!zip.has("data.pkl")) {
    const bool exported = zip.has("archive_format");
    throw CheckpointError(
        {.what = path,
         .expected = "a file of torch.save",
         .got = exported ? "a program of torch.export" : "another zip file",
         .hint = exported
                     ? concat("Convert it with Python: python3 -c \"import torch, safetensors.torch as s; "
                              "s.save_file({k: v.detach().clone().contiguous() for k, v in "
                              "torch.export.load('",
                              path, "').state_dict.items()}, 'model.safetensors')\"")
                     : ""});
  }
  if (zip.has("byteorder") && zip.text("byteorder") != "little") {
    throw CheckpointError({.what = path,
                           .expected = "little-endian numbers",
                           .got = zip.text("byteorder"),
                           .hint = conversion(path, "x")});
  }
  const std::string pickle = zip.text("data.pkl");
  const PickleReader reader(std::as_bytes(std::span(pickle.data(), pickle.size())));
  const PickleValue* value = &unwrap(reader.value());
  if (!key.empty()) {
    const PickleValue* found = is_dict(*value) ? find(*value, key) : nullptr;
    if (found == nullptr) {
      throw CheckpointError({.what = concat(path, " has no entry '", key, "'"),
                             .expected = "one of its keys",
                             .got = is_dict(*value) ? list_entries(*value) : describe(*value)});
    }
    value = found;
  }
  TensorDict out;
  if (is_dict(*value)) {
    out = make_dict(zip, *value, key);
  } else if (is_archive(*value)) {
    add_archive(zip, *value, "", 0, out);
  } else {
    no_dict(path, key, *value);
  }
  return out;
}

[[noreturn]] void no_zip(const std::string& path, std::string_view begin) {
  ErrorText text{.what = path, .expected = "a file of torch.save"};
  if (begin.starts_with("\x80\x02\x8a\x0a")) {
    text.got = "one in the format before torch 1.6";
    text.hint = conversion(path, "x");
  } else if (begin.starts_with("\x80")) {
    text.got = "a plain pickle";
    text.hint = "Load it in Python and write its tensors with safetensors.torch.save_file().";
  } else if (begin.size() > 8 && begin[8] == '{') {
    text.got = "a safetensors file";
    text.hint = "Read it with load_safetensors().";
  } else {
    text.got =
        concat("a file of ", begin.size(), begin.size() < 16 ? "" : " or more", " bytes that is no zip file");
    text.hint = "Is it the right file?";
  }
  throw CheckpointError(text);
}

}  // namespace

TensorDict load_torch_file(const std::string& path, const std::string& key) {
  std::shared_ptr<FileMapping> mapping;
  try {
    mapping = std::make_shared<FileMapping>(path);
  } catch (const DataError& error) {
    throw CheckpointError(error.text());
  }
  const auto bytes = mapping->bytes();
  const std::string_view begin(reinterpret_cast<const char*>(bytes.data()),
                               std::min<size_t>(bytes.size(), 16));
  if (!begin.starts_with("PK")) no_zip(path, begin);
  try {
    TorchZip zip(path, mapping);
    return read_zip(zip, key);
  } catch (const c10::Error& error) {
    damaged(path, error.what_without_backtrace());
  } catch (const std::invalid_argument& error) {
    damaged(path, error.what());
  }
}

}  // namespace accelerate
