#include "accelerate/checkpoint/store/weight_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kIndexSuffix = ".safetensors.index.json";
constexpr const char* kFileSuffix = ".safetensors";
constexpr uint64_t kMostIndexBytes = 100'000'000;
constexpr int kMaxDepth = 16;
constexpr size_t kMostNames = 8;

[[noreturn]] void fail(const std::string& path, const std::string& what, const std::string& hint = {}) {
  throw CheckpointError({.what = concat(path, ": ", what), .hint = hint});
}

// "'a', 'b' and 5 more"
std::string some_of(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) {
    out += concat(i == 0 ? "" : ", ", "'", names[i], "'");
  }
  if (names.size() > kMostNames) out += concat(" and ", names.size() - kMostNames, " more");
  return out;
}

// "model-00002-of-00005.safetensors" says that there are five.
void check_count(const std::string& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const size_t of = name.rfind("-of-");
    if (of == std::string::npos) continue;
    const std::string stem = name.substr(0, name.size() - std::string(kFileSuffix).size());
    const auto count = parse_int(stem.substr(of + 4));
    const size_t dash = stem.rfind('-', of - 1);
    if (!count || *count < 1 || *count > 99999 || dash == std::string::npos) continue;
    std::vector<std::string> missing;
    for (int64_t i = 1; i <= *count; ++i) {
      std::string number = std::to_string(i);
      number.insert(0, 5 - std::min<size_t>(5, number.size()), '0');
      const std::string wanted = concat(stem.substr(0, dash + 1), number, name.substr(of));
      if (std::find(names.begin(), names.end(), wanted) == names.end()) missing.push_back(wanted);
    }
    if (!missing.empty()) fail(folder, concat("shards are missing: ", some_of(missing)));
  }
}

// What else the folder may be, for whoever named a wrong one.
std::string hint_for(FileSystem& files, const std::string& folder) {
  for (const std::string& name : files.list(folder)) {
    if (name.ends_with(".distcp") || name == ".metadata") {
      return "It is a checkpoint of torch.distributed.checkpoint (.distcp): merge it with Python's "
             "`accelerate "
             "merge-weights`, or save it as safetensors.";
    }
    if (name == "pytorch_model_fsdp_0") return concat("Name the folder ", name, " in it.");
    if (name.ends_with(".bin") || name.ends_with(".pt"))
      return concat(name, " holds pickled Python objects, which are not read here; save it as safetensors.");
    if (name.ends_with(kFileSuffix))
      return concat("Name the file, for instance ", path_in(folder, name), ".");
  }
  return "Name the folder that holds them.";
}

class Reader {
 public:
  explicit Reader(FileSystem& files) : files_(files) {}

  WeightFiles read(const std::string& input) {
    const std::optional<FileInfo> info = files_.info(input);
    if (!info) fail(input, "there is no such file or folder", "Check the path.");
    if (info->kind == FileKind::kDirectory) {
      const std::string index = path_in(input, kIndexName);
      if (files_.info(index)) {
        read_by_index(index);
      } else {
        read_folder(input);
      }
    } else if (input.ends_with(kIndexSuffix)) {
      read_by_index(input);
    } else {
      add_file(input);
    }
    std::sort(out_.weights.begin(), out_.weights.end(),
              [](const auto& a, const auto& b) { return a.entry.name < b.entry.name; });
    return std::move(out_);
  }

 private:
  void read_folder(const std::string& folder) {
    std::vector<std::string> names;
    for (const std::string& name : files_.list(folder)) {
      if (name.starts_with("model") && name.ends_with(kFileSuffix)) names.push_back(name);
    }
    if (names.empty()) {
      fail(folder, concat("neither ", kIndexName, " nor any model*.safetensors is in it"),
           hint_for(files_, folder));
    }
    check_count(folder, names);
    for (const std::string& name : names) add_file(path_in(folder, name));
  }

  void read_by_index(const std::string& index) {
    out_.index = index;
    const WeightIndex said = read_weight_index(files_, index);
    out_.index_metadata = said.metadata;
    const std::vector<std::string> names = said.file_names();
    const std::string folder = parent_directory(index);
    std::vector<std::string> missing;
    for (const std::string& name : names) {
      if (!files_.info(path_in(folder, name))) missing.push_back(name);
    }
    if (!missing.empty()) fail(index, concat("it names files that are not there: ", some_of(missing)));
    for (const std::string& name : names) add_file(path_in(folder, name));
    compare(said.files);
  }

  void compare(const std::map<std::string, std::string>& map) const {
    std::vector<std::string> missing;
    std::vector<std::string> elsewhere;
    std::vector<std::string> unknown;
    for (const auto& [tensor, file] : map) {
      const auto found = where_.find(tensor);
      if (found == where_.end()) {
        missing.push_back(tensor);
      } else if (file_name(out_.paths[found->second]) != file) {
        elsewhere.push_back(tensor);
      }
    }
    for (const auto& [tensor, file] : where_) {
      if (!map.contains(tensor)) unknown.push_back(tensor);
    }
    std::vector<std::string> problems;
    if (!missing.empty()) problems.push_back(concat("tensors that no file holds: ", some_of(missing)));
    if (!elsewhere.empty())
      problems.push_back(concat("tensors that another file holds: ", some_of(elsewhere)));
    if (!unknown.empty())
      problems.push_back(concat("tensors in the files that it does not name: ", some_of(unknown)));
    if (problems.empty()) return;
    fail(out_.index, concat("it does not agree with its files: ", join(problems, "; ")),
         "They may belong to two different models; copy all of them again.");
  }

  static std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

  void add_file(const std::string& path) {
    const SafetensorsHeader header = read_safetensors_header(files_, path);
    const size_t file = out_.paths.size();
    out_.paths.push_back(path);
    for (const auto& [name, value] : header.metadata) {
      const auto [known, is_new] = out_.metadata.emplace(name, value);
      if (!is_new && known->second != value) {
        out_.notes.push_back(concat("metadata '", name, "' is '", known->second, "' in one file and '", value,
                                    "' in ", path, "; the first is kept"));
      }
    }
    std::vector<std::string> twice;
    for (const SafetensorsEntry& entry : header.tensors) {
      if (!where_.emplace(entry.name, file).second) twice.push_back(entry.name);
    }
    if (!twice.empty()) {
      fail(path, concat("tensors that ", out_.paths[where_[twice.front()]], " holds too: ", some_of(twice)),
           "Leave only the files of one model in the folder.");
    }
    add_tensors(header, file);
  }

  // Tensors that are the same bytes go in once, under the first of their names.
  void add_tensors(const SafetensorsHeader& header, size_t file) {
    std::vector<SafetensorsEntry> sorted = header.tensors;
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    std::map<std::pair<uint64_t, uint64_t>, std::string> seen;
    for (SafetensorsEntry& entry : sorted) {
      if (entry.num_bytes() > 0) {
        const auto [first, is_new] = seen.emplace(std::pair(entry.begin, entry.end), entry.name);
        if (!is_new) {
          out_.tied.emplace_back(entry.name, first->second);
          out_.metadata.emplace(entry.name, first->second);
          continue;
        }
      }
      const uint64_t position = header.data_begin + entry.begin;
      out_.weights.push_back({.entry = std::move(entry), .file = file, .position_bytes = position});
    }
  }

  FileSystem& files_;
  WeightFiles out_;
  std::map<std::string, size_t> where_;  // every tensor's file
};

}  // namespace

std::vector<std::string> WeightIndex::file_names() const {
  std::set<std::string> names;
  for (const auto& [tensor, file] : files) names.insert(file);
  return {names.begin(), names.end()};
}

WeightIndex read_weight_index(FileSystem& files, const std::string& path) {
  const std::string text = read_whole_file(files, path, kMostIndexBytes);
  const auto not_too_deep = [&path](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) fail(path, "its JSON is nested too deeply");
    return true;
  };
  const Json json = Json::parse(text, not_too_deep, false);
  if (json.is_discarded()) fail(path, "no valid JSON", "Take another copy of it.");
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) fail(path, "it has no weight_map");
  WeightIndex out;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      fail(path, concat("the file of tensor '", tensor, "' is no name beside the index"));
    }
    out.files[tensor] = name;
  }
  if (out.files.empty()) fail(path, "its weight_map is empty");
  const auto said = json.find("metadata");
  if (said != json.end() && said->is_object()) {
    out.metadata = said->dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return out;
}

WeightFiles read_weight_files(FileSystem& files, const std::string& input) {
  return Reader(files).read(input);
}

}  // namespace accelerate
