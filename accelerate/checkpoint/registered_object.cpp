#include "accelerate/checkpoint/registered_object.h"

#include <torch/serialize.h>

#include <sstream>

namespace accelerate::detail {

std::string archive_bytes(const std::function<void(torch::serialize::OutputArchive&)>& save) {
  torch::serialize::OutputArchive archive;
  save(archive);
  std::ostringstream text;
  archive.save_to(text);
  return text.str();
}

void load_archive_bytes(const std::string& bytes, at::Device device,
                        const std::function<void(torch::serialize::InputArchive&)>& load) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), device);
  load(archive);
}

}  // namespace accelerate::detail
