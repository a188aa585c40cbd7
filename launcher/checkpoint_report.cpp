#include "launcher/checkpoint_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/store/checksum.h"
#include "accelerate/checkpoint/store/leftovers.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape) sizes.push_back(std::to_string(size));
  return concat("[", join(sizes, ", "), "]");
}

CheckpointReport report_one(FileSystem& files, const std::string& path, const ReportRequest& request) {
  CheckpointReport out{.path = path,
                       .verification = verify_checkpoint(files, path, request.level, request.progress),
                       .tensors = {}};
  if (!request.with_tensors || !out.verification.manifest) return out;
  for (const CheckpointFile& file : out.verification.manifest->files) {
    if (!file.path.ends_with(".safetensors")) continue;
    try {
      out.tensors.emplace_back(file.path, read_safetensors_header(files, path_in(path, file.path)));
    } catch (const CheckpointError& error) {
      auto& problems = out.verification.problems;
      const auto known = std::find_if(problems.begin(), problems.end(),
                                      [&file](const auto& problem) { return problem.path == file.path; });
      if (known == problems.end()) problems.push_back({file.path, error.what()});
    }
  }
  return out;
}

std::string one_text(const CheckpointReport& report, bool with_files) {
  const CheckpointVerification& found = report.verification;
  std::string out = concat(report.path, ": ", found.complete() ? "complete" : "NOT COMPLETE", "\n");
  for (const CheckpointProblem& problem : found.problems) {
    out += concat("  problem: ", problem.path.empty() ? "" : problem.path + ": ", problem.what, "\n");
  }
  if (!found.manifest) return out;
  const CheckpointManifest& manifest = *found.manifest;
  out += concat("  iteration ", manifest.iteration, ", optimizer steps ", manifest.optimizer_steps,
                ", epoch ", manifest.epoch, ", world size ", manifest.world_size, ", strategy ",
                manifest.strategy.empty() ? "not given" : manifest.strategy, "\n");
  out += concat("  written ", manifest.time, " by accelerate ", manifest.accelerate_version, "\n");
  out += concat("  ", manifest.files.size(), manifest.files.size() == 1 ? " file, " : " files, ",
                format_bytes(manifest.total_bytes()), "\n");
  if (!with_files) return out;
  size_t width = 0;
  for (const CheckpointFile& file : manifest.files) width = std::max(width, file.path.size());
  for (const CheckpointFile& file : manifest.files) {
    out += concat("    ", padded(file.path, width), "  ", file.size_bytes, " bytes  ",
                  checksum_text(file.xxh3_64), "\n");
  }
  if (manifest.extra != "{}") out += concat("  extra: ", manifest.extra, "\n");
  if (!found.other_files.empty()) {
    out += concat("  not part of it: ", join(found.other_files, ", "), "\n");
  }
  for (const auto& [file, header] : report.tensors) {
    out += concat("  tensors of ", file, ": ", header.tensors.size(), ", ", format_bytes(header.data_bytes()),
                  "\n");
    size_t name_width = 0;
    for (const SafetensorsEntry& entry : header.tensors) name_width = std::max(name_width, entry.name.size());
    for (const SafetensorsEntry& entry : header.tensors) {
      out += concat("    ", padded(entry.name, name_width), "  ", padded(entry.dtype, 7), "  ",
                    shape_text(entry.shape), "  ", entry.num_bytes(), " bytes\n");
    }
  }
  return out;
}

Json one_json(const CheckpointReport& report) {
  const CheckpointVerification& found = report.verification;
  Json out = {{"path", report.path},
              {"complete", found.complete()},
              {"problems", Json::array()},
              {"manifest", nullptr},
              {"other_files", found.other_files}};
  for (const CheckpointProblem& problem : found.problems) {
    out["problems"].push_back({{"path", problem.path}, {"what", problem.what}});
  }
  if (found.manifest) {
    const CheckpointManifest& manifest = *found.manifest;
    Json files = Json::array();
    for (const CheckpointFile& file : manifest.files) {
      files.push_back(
          {{"path", file.path}, {"size_bytes", file.size_bytes}, {"xxh3_64", checksum_text(file.xxh3_64)}});
    }
    out["manifest"] = {{"format_version", manifest.format_version},
                       {"accelerate_version", manifest.accelerate_version},
                       {"time", manifest.time},
                       {"iteration", manifest.iteration},
                       {"optimizer_steps", manifest.optimizer_steps},
                       {"epoch", manifest.epoch},
                       {"world_size", manifest.world_size},
                       {"strategy", manifest.strategy},
                       {"total_bytes", manifest.total_bytes()},
                       {"extra", Json::parse(manifest.extra)},
                       {"files", std::move(files)}};
  }
  if (report.tensors.empty()) return out;
  out["tensors"] = Json::object();
  for (const auto& [file, header] : report.tensors) {
    Json list = Json::array();
    for (const SafetensorsEntry& entry : header.tensors) {
      list.push_back({{"name", entry.name},
                      {"dtype", entry.dtype},
                      {"shape", entry.shape},
                      {"bytes", entry.num_bytes()}});
    }
    out["tensors"][file] = std::move(list);
  }
  return out;
}

}  // namespace

int CheckpointReports::exit_code() const {
  bool is_bad = checkpoints.empty();
  for (const CheckpointReport& report : checkpoints) is_bad = is_bad || !report.verification.complete();
  for (const SkippedEntry& entry : skipped) is_bad = is_bad || checkpoint_number(entry.name).has_value();
  return static_cast<int>(is_bad ? ExitCode::kCheckpointError : ExitCode::kSuccess);
}

CheckpointReports report_checkpoints(FileSystem& files, const std::string& path,
                                     const ReportRequest& request) {
  const std::optional<FileInfo> info = files.info(path);
  if (!info || info->kind != FileKind::kDirectory) {
    throw CheckpointError(
        {.what = concat(path, ": ", info ? "it is no folder" : "it is not there"),
         .hint = "Name the folder of a checkpoint, or one that holds checkpoint_<n> folders."});
  }
  CheckpointReports out{.path = path, .checkpoints = {}, .skipped = {}, .newest = {}};
  if (files.info(path_in(path, CheckpointManifest::kFileName))) {
    out.checkpoints.push_back(report_one(files, path, request));
    if (out.checkpoints.front().verification.complete()) out.newest = path;
    return out;
  }
  out.is_folder = true;
  CheckpointListing listing = list_checkpoints(files, path);
  const bool any_named = std::any_of(listing.skipped.begin(), listing.skipped.end(), [](const auto& entry) {
    const auto leftover = parse_leftover(entry.name);
    return checkpoint_number(leftover ? leftover->final_name : entry.name).has_value();
  });
  if (listing.checkpoints.empty() && !any_named) {
    throw CheckpointError({.what = concat(path, ": no checkpoint is here"),
                           .expected = "a manifest.json, or folders checkpoint_<n>",
                           .hint = "Weights alone (model.safetensors) have no manifest."});
  }
  for (const ListedCheckpoint& listed : listing.checkpoints) {
    out.checkpoints.push_back(report_one(files, listed.path, request));
    if (out.checkpoints.back().verification.complete()) out.newest = listed.path;
  }
  out.skipped = std::move(listing.skipped);
  return out;
}

std::string report_text(const CheckpointReports& reports, bool with_files) {
  std::string out;
  for (const CheckpointReport& report : reports.checkpoints) out += one_text(report, with_files);
  for (const SkippedEntry& entry : reports.skipped) {
    out += concat(path_in(reports.path, entry.name), ": passed over: ", entry.reason, "\n");
  }
  if (reports.is_folder) {
    out += reports.newest.empty() ? "No complete checkpoint.\n"
                                  : concat("Newest complete: ", reports.newest, "\n");
  }
  return out;
}

std::string report_json(const CheckpointReports& reports) {
  Json out = {{"path", reports.path},
              {"newest", nullptr},
              {"checkpoints", Json::array()},
              {"skipped", Json::array()}};
  if (!reports.newest.empty()) out["newest"] = reports.newest;
  for (const CheckpointReport& report : reports.checkpoints) out["checkpoints"].push_back(one_json(report));
  for (const SkippedEntry& entry : reports.skipped) {
    out["skipped"].push_back({{"name", entry.name}, {"reason", entry.reason}});
  }
  // Names of files may be any bytes.
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace accelerate::cli
