#pragma once

#include <concepts>
#include <functional>
#include <string>

#include "accelerate/comm/serializer.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace accelerate {

namespace detail {

// As torch's modules and optimizers.
template <class T>
concept TorchSerializable = requires(T& object, torch::serialize::OutputArchive& out,
                                     torch::serialize::InputArchive& in) {
  object.save(out);
  object.load(in);
};

// As Python's objects: state_dict() gives what load_state_dict() takes.
template <class T>
concept HasStateDict = requires(T& object) {
  object.load_state_dict(object.state_dict());
  requires Serializable<std::remove_cvref_t<decltype(object.state_dict())>>;
};

}  // namespace detail

/// What Accelerator::register_for_checkpointing() takes: an object with state_dict() and load_state_dict(),
/// with torch's save(OutputArchive&) and load(InputArchive&), or a value that can be bytes (Note [Values as
/// bytes]).
template <class T>
concept Checkpointable = detail::HasStateDict<T> || detail::TorchSerializable<T> || Serializable<T>;

/// An object of the user's whose state goes into checkpoints.
struct RegisteredObject {
  std::string name;       ///< of its file, without an ending
  bool per_rank = false;  ///< every rank has a state of its own; else that of the main process counts
  std::function<std::string()> save;
  /// `device`: the rank's, for objects that know how to come to one.
  std::function<void(const std::string& bytes, at::Device device)> load;
};

namespace detail {

std::string archive_bytes(const std::function<void(torch::serialize::OutputArchive&)>& save);
void load_archive_bytes(const std::string& bytes, at::Device device,
                        const std::function<void(torch::serialize::InputArchive&)>& load);

/// `object` must live as long as the result.
template <Checkpointable T>
RegisteredObject register_object(T& object) {
  RegisteredObject out;
  if constexpr (HasStateDict<T>) {
    using State = std::remove_cvref_t<decltype(object.state_dict())>;
    out.save = [&object] { return to_bytes<State>(object.state_dict()); };
    out.load = [&object](const std::string& bytes, at::Device) {
      object.load_state_dict(from_bytes<State>(bytes));
    };
  } else if constexpr (TorchSerializable<T>) {
    out.save = [&object] {
      return archive_bytes([&object](torch::serialize::OutputArchive& archive) { object.save(archive); });
    };
    out.load = [&object](const std::string& bytes, at::Device device) {
      load_archive_bytes(bytes, device,
                         [&object](torch::serialize::InputArchive& archive) { object.load(archive); });
    };
  } else {
    out.save = [&object] { return to_bytes<T>(object); };
    out.load = [&object](const std::string& bytes, at::Device) { object = from_bytes<T>(bytes); };
  }
  return out;
}

}  // namespace detail
}  // namespace accelerate
