// Trains a small transformer to go on writing a text: each token from those before it.
//
//   bible -f gen1:1-rev22:21 | ./02_tokenize --text - --references --output kjv.npy
//   accel launch --cpu --num_processes 2 ./02_language_model --data kjv.npy
//
// The file of tokens is mapped, not read: all ranks of a machine share its pages, and it may be larger than
// memory. Equal total batches give equal results: one process with --batch_size 32 trains as two with
// --batch_size 16.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <limits>
#include <numbers>
#include <optional>

#include "accelerate/accelerate.h"

struct Options {
  std::string data = "kjv.npy";
  std::string save;
  std::string profile;
  int64_t epochs = 1;
  int64_t steps = 0;
  int64_t batch_size = 16;
  std::optional<int64_t> accumulation;
  int64_t context = 128;
  int64_t layers = 2;
  int64_t heads = 4;
  int64_t width = 128;
  double lr = 2e-3;
  int64_t seed = 42;
  int64_t log_every = 50;
};

// ---- Model ------------------------------------------------------------------------------------------------

// Attention to the tokens before, then a perceptron; each adds to what comes in (GPT-2's order of norms).
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t num_heads) : heads(num_heads) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    qkv = register_module("qkv", torch::nn::Linear(width, 3 * width));
    project = register_module("project", torch::nn::Linear(width, width));
    expand = register_module("expand", torch::nn::Linear(width, 4 * width));
    contract = register_module("contract", torch::nn::Linear(4 * width, width));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attend(norm1->forward(x));
    return x + contract->forward(torch::gelu(expand->forward(norm2->forward(x))));
  }
  torch::Tensor attend(const torch::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    // [3, batch, heads, length, width / heads]
    const auto parts =
        qkv->forward(x).view({batch, length, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    const auto seen = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], /*attn_mask=*/{},
                                                       /*dropout_p=*/0.0, /*is_causal=*/true);
    return project->forward(seen.transpose(1, 2).reshape({batch, length, width}));
  }
  int64_t heads;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear qkv{nullptr}, project{nullptr}, expand{nullptr}, contract{nullptr};
};
TORCH_MODULE(Block);

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl(int64_t vocabulary, const Options& options) {
    token = register_module("token", torch::nn::Embedding(vocabulary, options.width));
    place = register_module("place", torch::nn::Embedding(options.context, options.width));
    for (int64_t i = 0; i < options.layers; ++i) blocks->push_back(Block(options.width, options.heads));
    register_module("blocks", blocks);
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})));
    torch::nn::init::normal_(token->weight, 0, 0.02);
    torch::nn::init::normal_(place->weight, 0, 0.02);
  }
  // Tokens [batch, length], int64 -> scores of each next token, [batch, length, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = token->forward(tokens) + place->weight.slice(0, 0, tokens.size(1));
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return torch::linear(norm->forward(x), token->weight);
  }
  torch::nn::Embedding token{nullptr}, place{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm{nullptr};
};
TORCH_MODULE(LanguageModel);

// -log p of every token but the first of each window, given those before it: [batch, context], in nats.
template <class Model>
torch::Tensor surprise(Model& model, const torch::Tensor& windows) {
  const auto tokens = windows.to(torch::kLong);
  const auto input = tokens.slice(1, 0, -1);
  const auto target = tokens.slice(1, 1);
  const auto scores = model->forward(input);
  using torch::nn::functional::CrossEntropyFuncOptions;
  return torch::nn::functional::cross_entropy(scores.flatten(0, 1), target.flatten(),
                                              CrossEntropyFuncOptions().reduction(torch::kNone))
      .view_as(target);
}

// ---- Data -------------------------------------------------------------------------------------------------

struct Text {
  torch::Tensor tokens;  // [count], uint8 or uint16, a mapped file
  torch::Tensor bytes;   // [vocabulary], int64: bytes of text that each token stands for
};

void check_tokens(const torch::Tensor& tokens, const std::string& path) {
  const auto type = tokens.scalar_type();
  if (tokens.dim() == 1 && (type == torch::kUInt8 || type == torch::kUInt16)) return;
  throw accelerate::DataError({.what = path,
                               .expected = "one row of tokens, uint8 or uint16",
                               .got = accelerate::concat(torch::toString(type), " of shape ", tokens.sizes()),
                               .hint = "02_tokenize makes such files."});
}

Text load_text(const std::string& path) {
  const auto tokens = accelerate::load_npy(path);
  check_tokens(tokens, path);
  const std::string stem = path.ends_with(".npy") ? path.substr(0, path.size() - 4) : path;
  const std::string bytes_path = stem + ".bytes.npy";
  if (!std::filesystem::exists(bytes_path)) {
    throw accelerate::DataError({.what = bytes_path + " is missing",
                                 .hint = "02_tokenize writes it beside the tokens; keep the two together."});
  }
  return {.tokens = tokens, .bytes = accelerate::load_npy(bytes_path)};
}

struct Parts {
  torch::Tensor train, validation;
};

// The last twentieth is for validation.
Parts hold_out(const torch::Tensor& tokens, int64_t context) {
  const int64_t count = tokens.size(0);
  const int64_t held_out = count / 20;
  if (held_out <= context) {
    throw accelerate::DataError({.what = "a file of tokens for windows of " + std::to_string(context),
                                 .expected = accelerate::concat("at least ", 20 * (context + 1), " tokens"),
                                 .got = std::to_string(count),
                                 .hint = "Use a longer text or a smaller --context."});
  }
  return {.train = tokens.narrow(0, 0, count - held_out),
          .validation = tokens.narrow(0, count - held_out, held_out)};
}

// Windows of context + 1 tokens, each beginning with the last token of the one before, so that every token is
// predicted once. They are views of the file; a batch of them is one gather.
accelerate::SharedMemoryDataset windows(const torch::Tensor& tokens, int64_t context) {
  return accelerate::SharedMemoryDataset::map([&] { return tokens.unfold(0, context + 1, context); });
}

// ---- Training ---------------------------------------------------------------------------------------------

// Rises to `peak` over the first `warmup` steps, then falls to a tenth of it along a cosine.
class WarmupCosine : public torch::optim::LRScheduler {
 public:
  WarmupCosine(torch::optim::Optimizer& optimizer, double peak, int64_t total)
      : LRScheduler(optimizer), peak_(peak), warmup_(std::clamp<int64_t>(total / 10, 1, 100)), total_(total) {
    step();  // sets the rate of the first step
  }

 private:
  std::vector<double> get_lrs() override {
    const auto step = static_cast<double>(step_count_);
    const auto warmup = static_cast<double>(warmup_);
    const double done = std::min(1.0, (step - warmup) / std::max(1.0, static_cast<double>(total_) - warmup));
    const double factor =
        step < warmup ? (step + 1) / warmup : 0.55 + 0.45 * std::cos(std::numbers::pi * done);
    return std::vector<double>(get_current_lrs().size(), peak_ * factor);
  }

  double peak_;
  int64_t warmup_;
  int64_t total_;
};

// Bits that the model needs for a byte of text; comparable between vocabularies.
template <class Model, class Loader>
double bits_per_byte(accelerate::Accelerator& accelerator, Model& model, Loader& loader,
                     const torch::Tensor& bytes_of_token) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double nats = 0;
  int64_t bytes = 0;
  for (auto& batch : loader) {
    const auto targets = batch.data.slice(1, 1).to(torch::kLong);
    // One number a window, so that windows repeated to make the ranks even are left out again.
    const auto [all_nats, all_bytes] = accelerator.gather_for_metrics(
        std::pair(surprise(model, batch.data).sum(1), bytes_of_token.index({targets}).sum(1)));
    nats += all_nats.sum().template item<double>();
    bytes += all_bytes.sum().template item<int64_t>();
  }
  model->train();
  return nats / std::numbers::ln2 / static_cast<double>(std::max<int64_t>(bytes, 1));
}

// Prints the mean loss of the last steps, over all ranks, and how many tokens a second they took.
class Progress {
 public:
  Progress(accelerate::Accelerator& accelerator, int64_t every, int64_t tokens_per_step)
      : accelerator_(accelerator), every_(every), tokens_per_step_(tokens_per_step) {}

  void micro_batch(const torch::Tensor& loss) {
    loss_sum_ = loss_sum_.to(loss.device()) + loss.detach();
    ++micro_batches_;
  }
  void step(int64_t number) {
    if (number % every_ != 0) return;
    const auto mean = accelerator_.reduce(loss_sum_ / micro_batches_, accelerate::ReduceOp::kMean);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start_;
    char line[100];
    std::snprintf(line, sizeof line, "step %ld loss %.6f %.0f tokens/s", static_cast<long>(number),
                  mean.item<double>(), static_cast<double>(every_ * tokens_per_step_) / time.count());
    accelerator_.print(line);
    loss_sum_ = torch::zeros({});
    micro_batches_ = 0;
    start_ = std::chrono::steady_clock::now();
  }

 private:
  accelerate::Accelerator& accelerator_;
  int64_t every_;
  int64_t tokens_per_step_;
  torch::Tensor loss_sum_ = torch::zeros({});
  int64_t micro_batches_ = 0;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void train(const Options& options) {
  accelerate::Accelerator accelerator({.gradient_accumulation_steps = options.accumulation});
  accelerate::set_seed(static_cast<uint64_t>(options.seed));
  const int64_t accumulated = accelerator.gradient_accumulation_steps();

  const Text text = load_text(options.data);
  const Parts parts = hold_out(text.tokens, options.context);
  const auto bytes_of_token = text.bytes.to(accelerator.device());

  LanguageModel net(text.bytes.size(0), options);
  torch::optim::AdamW adam(net->parameters(),
                           torch::optim::AdamWOptions(options.lr).betas({0.9, 0.99}).weight_decay(0.1));
  // drop_last: a last round filled up with repeated windows would weigh those twice.
  auto [model, optimizer, loader, validation] = accelerator.prepare(
      net, adam,
      accelerate::DataLoader(windows(parts.train, options.context),
                             {.batch_size = options.batch_size, .shuffle = true, .drop_last = true}),
      accelerate::DataLoader(windows(parts.validation, options.context), {.batch_size = 32}));
  if (loader.size() == 0) {
    throw accelerate::DataError(
        {.what = options.data,
         .expected = accelerate::concat("at least ", loader.total_batch_size(), " windows, one batch"),
         .got = std::to_string(loader.dataset().size()),
         .hint = "Use a smaller --batch_size or --context."});
  }
  const int64_t steps_per_epoch = (loader.size() + accumulated - 1) / accumulated;
  const int64_t total_steps = options.steps > 0 ? options.steps : options.epochs * steps_per_epoch;
  auto schedule = accelerator.prepare(WarmupCosine(adam, options.lr, total_steps));

  int64_t num_parameters = 0;
  for (const auto& parameter : net->parameters()) num_parameters += parameter.numel();
  const int64_t windows_per_step = loader.total_batch_size() * accumulated;
  accelerator.print(num_parameters, " parameters, ", accelerator.num_processes(), " x ", options.batch_size,
                    " x ", accumulated, " = ", windows_per_step, " windows of ", options.context,
                    " tokens a step, ", steps_per_epoch, " steps an epoch, ", total_steps, " in all");

  Progress progress(accelerator, options.log_every, windows_per_step * options.context);
  std::optional<accelerate::Profiler> profiler;
  if (!options.profile.empty()) {
    profiler.emplace(
        accelerator,
        accelerate::ProfileOptions{
            .schedule_option = accelerate::ProfileSchedule{.wait = 2, .warmup = 1, .active = 3, .repeat = 1},
            .output_trace_dir = options.profile});
  }
  for (int64_t step = 0; step < total_steps;) {
    for (auto& batch : loader) {
      const auto micro_batch = accelerator.accumulate(model);
      optimizer.zero_grad();
      const auto loss = surprise(model, batch.data).mean();
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      schedule.step();
      progress.micro_batch(loss);
      if (profiler) profiler->step();
      if (!accelerator.sync_gradients()) continue;
      progress.step(++step);
      if (step == total_steps) break;
    }
    char line[80];
    std::snprintf(line, sizeof line, "validation after %ld steps: %.4f bits a byte", static_cast<long>(step),
                  bits_per_byte(accelerator, model, validation, bytes_of_token));
    accelerator.print(line);
  }
  if (profiler) {
    profiler->finish();
    accelerator.print(profiler->table(10));
  }
  if (!options.save.empty()) accelerator.print("saved ", accelerator.save_model(model, options.save));
}

void check(const Options& options) {
  if (options.width % options.heads == 0) return;
  throw accelerate::ConfigError({.what = "--width",
                                 .expected = accelerate::concat("a multiple of --heads ", options.heads),
                                 .got = std::to_string(options.width)});
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small transformer on a text, on as many ranks as the launcher started");
  const CLI::Range positive(int64_t{1}, int64_t{1000000000});
  app.add_option("--data", options.data, "tokens that 02_tokenize wrote")->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the text")->check(positive)->capture_default_str();
  app.add_option("--steps", options.steps, "optimizer steps, instead of --epochs")->check(positive);
  app.add_option("--batch_size", options.batch_size, "windows in a batch of each rank")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--accumulation", options.accumulation,
                 "batches per optimizer step [1, or what the configuration says]")
      ->check(positive);
  app.add_option("--context", options.context, "tokens that the model looks at")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--layers", options.layers, "transformer blocks")->check(positive)->capture_default_str();
  app.add_option("--heads", options.heads, "attention heads of a block")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--width", options.width, "numbers a token becomes, a multiple of --heads")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--lr", options.lr, "highest learning rate of AdamW")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "seed of weights and order")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  app.add_option("--log_every", options.log_every, "steps between two lines")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--save", options.save, "folder for model.safetensors");
  app.add_option("--profile", options.profile,
                 "folder for a profile of batches 3 to 5, a file for each rank");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    check(options);
    train(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << accelerate::error_message(error) << std::endl;
    return accelerate::exit_code(error);
  }
}
