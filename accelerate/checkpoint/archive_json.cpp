#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/api/module.h>

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "accelerate/checkpoint/archive_json_internal.h"
#include "accelerate/core/error.h"
#include "accelerate/core/private_member_internal.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {

// See Note [Private members].
struct WrittenModule {
  using Type = torch::jit::Module torch::serialize::OutputArchive::*;
  friend Type private_member(WrittenModule);
};
struct ReadModule {
  using Type = torch::jit::Module torch::serialize::InputArchive::*;
  friend Type private_member(ReadModule);
};
template struct PrivateMember<WrittenModule, &torch::serialize::OutputArchive::module_>;
template struct PrivateMember<ReadModule, &torch::serialize::InputArchive::module_>;

namespace {

struct ElementType {
  const char* name;
  c10::TypePtr type;
};

const std::array<ElementType, 5>& element_types() {
  static const std::array<ElementType, 5> types = {{{"int", c10::IntType::get()},
                                                    {"float", c10::FloatType::get()},
                                                    {"bool", c10::BoolType::get()},
                                                    {"str", c10::StringType::get()},
                                                    {"tensor", c10::TensorType::get()}}};
  return types;
}

Json object(const char* key, Json value) {
  Json out = Json::object();
  out[key] = std::move(value);
  return out;
}

[[noreturn]] void no_form(const std::string& name, const c10::IValue& value) {
  throw CheckpointError({.what = concat("'", name, "' of an optimizer can't be written"),
                         .expected = "numbers, strings, tensors, or tuples and lists of them",
                         .got = value.type()->repr_str()});
}

Json module_to_json(const torch::jit::Module& module, const std::string& name, TensorDict& tensors);

Json value_to_json(const c10::IValue& value, const std::string& name, TensorDict& tensors) {
  if (value.isNone()) return nullptr;
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isString()) return value.toStringRef();
  if (value.isDouble()) {
    const double number = value.toDouble();
    if (std::isfinite(number)) return number;
    return object("float", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
  }
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return object("tensor", nullptr);
    if (!tensors.emplace(name, value.toTensor().detach()).second) {
      throw CheckpointError({.what = concat("two tensors of an optimizer are both called '", name, "'"),
                             .hint = "Rename a parameter or a module of the model."});
    }
    return object("tensor", name);
  }
  if (value.isModule()) return object("archive", module_to_json(value.toModule(), name, tensors));
  if (!value.isTuple() && !value.isList()) no_form(name, value);
  Json values = Json::array();
  const auto elements =
      value.isTuple() ? value.toTupleRef().elements().vec() : std::as_const(value).toListRef().vec();
  for (size_t i = 0; i < elements.size(); ++i) {
    values.push_back(value_to_json(elements[i], concat(name, ".", i), tensors));
  }
  if (value.isTuple()) return values;
  const c10::TypePtr type = value.toList().elementType();
  for (const ElementType& known : element_types()) {
    if (*type != *known.type) continue;
    Json out = object("list", known.name);
    out["values"] = std::move(values);
    return out;
  }
  no_form(name, value);
}

Json module_to_json(const torch::jit::Module& module, const std::string& name, TensorDict& tensors) {
  Json out = Json::object();
  const auto& slots = module._ivalue()->slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    const std::string& key = module.type()->getAttributeName(i);
    out[key] = value_to_json(slots[i], concat(name, ".", key), tensors);
  }
  return out;
}

using TensorOf = std::function<at::Tensor(const std::string&)>;

c10::IValue json_to_value(const Json& json, const TensorOf& tensor_of) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_array()) {
    std::vector<c10::IValue> values;
    for (const Json& element : json) values.push_back(json_to_value(element, tensor_of));
    return c10::ivalue::Tuple::create(std::move(values));
  }
  if (json.contains("tensor")) {
    const Json& name = json["tensor"];
    return name.is_null() ? at::Tensor() : tensor_of(name.get<std::string>());
  }
  if (json.contains("float")) {
    const std::string text = json["float"].get<std::string>();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
  }
  if (json.contains("list")) {
    const std::string name = json["list"].get<std::string>();
    for (const ElementType& known : element_types()) {
      if (name != known.name) continue;
      c10::impl::GenericList list(known.type);
      for (const Json& element : json.at("values")) {
        c10::IValue value = json_to_value(element, tensor_of);
        const c10::TypePtr type = value.isTensor() ? c10::TensorType::get() : value.type();
        if (*type != *known.type) throw std::invalid_argument(concat("a list of mixed types: ", json.dump()));
        list.push_back(std::move(value));
      }
      return list;
    }
  }
  throw std::invalid_argument(concat("not a value: ", json.dump()));
}

}  // namespace

Json archive_to_json(const torch::serialize::OutputArchive& archive, const std::string& name,
                     TensorDict& tensors) {
  return module_to_json(archive.*private_member(WrittenModule{}), name, tensors);
}

void json_to_archive(const Json& json, torch::serialize::OutputArchive& archive, const TensorOf& tensor_of) {
  if (!json.is_object()) throw std::invalid_argument(concat("not an object: ", json.dump()));
  for (const auto& [key, value] : json.items()) {
    if (value.is_object() && value.contains("archive")) {
      torch::serialize::OutputArchive nested(archive.compilation_unit());
      json_to_archive(value["archive"], nested, tensor_of);
      archive.write(key, nested);
    } else {
      archive.write(key, json_to_value(value, tensor_of));
    }
  }
}

torch::serialize::InputArchive read_back(const torch::serialize::OutputArchive& archive) {
  torch::serialize::InputArchive out;
  out.*private_member(ReadModule{}) = archive.*private_member(WrittenModule{});
  return out;
}

}  // namespace accelerate::detail
