// `accel merge-weights`: joins the shards of a model, or shards it anew.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "accelerate/checkpoint/store/merge_weights.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "launcher/commands.h"

namespace accelerate::cli {
namespace {

struct Request {
  std::string input;
  std::string output;
  std::string max_shard_size;
  bool overwrite = false;
  bool unsafe_serialization = false;
  bool remove_checkpoint_dir = false;
};

// Whether `path` is `folder` or lies in it.
bool is_within(const std::filesystem::path& path, const std::filesystem::path& folder) {
  const std::string inner = std::filesystem::weakly_canonical(path).string() + "/";
  const std::string outer = std::filesystem::weakly_canonical(folder).string() + "/";
  return inner.starts_with(outer);
}

void check(const Request& request) {
  if (request.unsafe_serialization) {
    throw ConfigError(
        {.what = "--unsafe_serialization",
         .got = "a wish for pickled weights (.bin)",
         .hint = "Leave it out: weights are written as safetensors, which runs no code when read."});
  }
  if (!request.remove_checkpoint_dir) return;
  if (!std::filesystem::is_directory(request.input)) {
    throw ConfigError({.what = "--remove_checkpoint_dir", .expected = "a folder", .got = request.input});
  }
  if (is_within(request.output, request.input)) {
    throw ConfigError(
        {.what = "--remove_checkpoint_dir would remove the output, which lies in " + request.input,
         .hint = "Choose an output outside."});
  }
}

std::function<void(const MergeProgress&)> progress_line() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  const auto shown = std::make_shared<uint64_t>(UINT64_MAX);
  return [shown](const MergeProgress& progress) {
    const uint64_t percent = progress.done_bytes * 100 / std::max<uint64_t>(progress.total_bytes, 1);
    if (percent == *shown) return;
    *shown = percent;
    std::cerr << accelerate::concat("\r", percent, " % of ", format_bytes(progress.total_bytes),
                                    percent >= 100 ? "\n" : "")
              << std::flush;
  };
}

void run(const Request& request) {
  check(request);
  MergeOptions options{.overwrite = request.overwrite, .progress = progress_line()};
  if (!request.max_shard_size.empty()) options.max_shard_bytes = parse_shard_size(request.max_shard_size);
  const MergeResult result = merge_weights(system_files(), request.input, request.output, options);
  for (const std::string& note : result.notes) std::cerr << "accel: note: " << note << "\n";
  for (const auto& [left_out, kept] : result.tied) {
    std::cout << left_out << " is the same memory as " << kept << " and was written once\n";
  }
  std::cout << result.tensors << " tensors, " << format_bytes(result.bytes) << ":\n";
  for (const std::string& file : result.files) std::cout << "  " << file << "\n";
  if (request.remove_checkpoint_dir) {
    remove_tree(system_files(), request.input);
    std::cout << "removed " << request.input << "\n";
  }
}

}  // namespace

void add_merge_weights_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "merge-weights", "Join the safetensors files of a model into one, or into shards of another size");
  const auto request = std::make_shared<Request>();
  command
      ->add_option("checkpoint_directory", request->input,
                   "Folder with model.safetensors.index.json or model*.safetensors; an index; or one file")
      ->required();
  command
      ->add_option("output_path", request->output,
                   "Folder for model.safetensors, or a file that ends in .safetensors")
      ->required();
  command
      ->add_option("--max_shard_size", request->max_shard_size,
                   "Shards of at most that size (5GB, 500MB), with an index [one file]")
      ->type_name("SIZE");
  command->add_flag("--overwrite", request->overwrite, "Replace weights that are at the output already");
  command->add_flag("--remove_checkpoint_dir", request->remove_checkpoint_dir,
                    "Remove the input folder when all is written");
  command->add_flag("--unsafe_serialization", request->unsafe_serialization, "HF Accelerate's .bin; refused");
  command->footer("Exit code: 0 written, 6 the input is damaged or writing failed, 2 wrong usage.");
  command->callback([request, &exit_code] {
    run(*request);
    exit_code = 0;
  });
}

}  // namespace accelerate::cli
