// `accel estimate-memory`: what training a model will keep in memory.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/env_vars.h"
#include "launcher/commands.h"
#include "launcher/flag_checks.h"
#include "launcher/memory_estimate.h"

namespace accelerate::cli {
namespace {

struct Request {
  std::string model;
  std::string parameters;
  std::string optimizer = "adamw";
  std::string stored_dtype;
  int num_processes = 1;
  bool json = false;
};

ModelSize model_size(const Request& request) {
  if (request.model.empty() == request.parameters.empty()) {
    throw ConfigError(
        {.what = request.model.empty() ? "no model given" : "both a model and --parameters given",
         .hint = "Name a .safetensors file, an index or a folder, or pass --parameters 7B."});
  }
  if (!request.model.empty()) return read_model_size(request.model, request.stored_dtype);
  return {.name = request.parameters + " parameters",
          .parameters = parse_parameter_count(request.parameters)};
}

bool prints_utf8() {
  const EnvVars variables = EnvVars::from_process();
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string value = to_lower(variables.get(name).value_or(""));
    if (!value.empty())
      return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

void print_table(const Request& request, const ModelSize& model,
                 const std::vector<MemoryEstimate>& estimates) {
  std::cout << "Memory for training " << model.name << " with " << request.optimizer << ", on each of "
            << request.num_processes << (request.num_processes == 1 ? " process\n" : " processes\n");
  std::cout << "Parameters: " << model.parameters;
  if (model.tensors > 0) std::cout << " (" << model.tensors << " tensors)";
  if (model.stored_bytes > 0) std::cout << ", stored in " << memory_text(model.stored_bytes);
  std::cout << "\n";
  if (!model.largest_tensor.empty()) {
    std::cout << "Largest tensor: " << model.largest_tensor << ", "
              << memory_text(model.largest_parameters * 4) << " in fp32, "
              << memory_text(model.largest_parameters * 2) << " in bf16/fp16\n";
  }
  std::vector<std::vector<std::string>> rows = {
      {"strategy", "precision", "weights", "gradients", "optimizer", "training"}};
  bool all_supported = true;
  for (const MemoryEstimate& estimate : estimates) {
    all_supported = all_supported && estimate.supported;
    rows.push_back({estimate.strategy + (estimate.supported ? "" : " *"), estimate.precision,
                    memory_text(estimate.weights_bytes), memory_text(estimate.gradients_bytes),
                    memory_text(estimate.optimizer_bytes), memory_text(estimate.total_bytes())});
  }
  std::cout << box_table(rows, prints_utf8());
  if (!all_supported) std::cout << "* not supported yet for running\n";
  std::cout
      << "bf16/fp16: the optimizer holds master weights in fp32. Activations come on top; they grow with the "
         "batch.\n";
}

void print_json(const Request& request, const ModelSize& model,
                const std::vector<MemoryEstimate>& estimates) {
  nlohmann::ordered_json out = {{"model", model.name},
                                {"parameters", model.parameters},
                                {"tensors", nullptr},
                                {"stored_bytes", nullptr},
                                {"buffer_bytes", model.buffer_bytes},
                                {"largest_tensor", nullptr},
                                {"optimizer", request.optimizer},
                                {"num_processes", request.num_processes}};
  if (model.tensors > 0) out["tensors"] = model.tensors;
  if (model.stored_bytes > 0) out["stored_bytes"] = model.stored_bytes;
  if (!model.largest_tensor.empty()) {
    out["largest_tensor"] = {{"name", model.largest_tensor}, {"parameters", model.largest_parameters}};
  }
  out["estimates"] = nlohmann::ordered_json::array();
  for (const MemoryEstimate& estimate : estimates) {
    out["estimates"].push_back({{"strategy", estimate.strategy},
                                {"precision", estimate.precision},
                                {"supported", estimate.supported},
                                {"weights_bytes", estimate.weights_bytes},
                                {"gradients_bytes", estimate.gradients_bytes},
                                {"optimizer_bytes", estimate.optimizer_bytes},
                                {"total_bytes", estimate.total_bytes()}});
  }
  // Names of tensors and files may be any bytes.
  std::cout << out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << "\n";
}

}  // namespace

void add_estimate_memory_command(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("estimate-memory", "Say how much memory training a model will take");
  const auto request = std::make_shared<Request>();
  command->add_option("model", request->model,
                      "A .safetensors file or its header alone, an index, or a folder");
  command->add_option("--parameters", request->parameters, "Instead of a model: how many (7B, 350M, 124000)")
      ->type_name("N");
  command->add_option("--num_processes", request->num_processes, "Processes that share the work [1]")
      ->check(integer_from(1))
      ->type_name("N");
  command->add_option("--optimizer", request->optimizer, "adamw, sgd or sgd-momentum [adamw]")
      ->type_name("NAME");
  command
      ->add_option("--stored_dtype", request->stored_dtype,
                   "Type of the weights (BF16, F32), for an index whose files are elsewhere")
      ->type_name("TYPE");
  command->add_flag("--json", request->json, "Print bytes as JSON");
  command->callback([request, &exit_code] {
    const ModelSize model = model_size(*request);
    const auto estimates = estimate_memory(model, request->optimizer, request->num_processes);
    (request->json ? print_json : print_table)(*request, model, estimates);
    exit_code = 0;
  });
}

}  // namespace accelerate::cli
