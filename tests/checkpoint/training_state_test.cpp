// save_state() and load_state(): what comes back, what a crash leaves, and who is told.
#include "accelerate/checkpoint/training_state.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "accelerate/core/preemption.h"
#include "support/fault_file_system.h"
#include "support/temporary_folder.h"
#include "support/thread_ranks.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::require;
using test::TemporaryFolder;

namespace {

constexpr int64_t kSamples = 64;

AcceleratorOptions project(const std::string& folder, std::optional<int64_t> total_limit = std::nullopt) {
  return {.project_config = {
              .project_dir = folder, .automatic_checkpoint_naming = true, .total_limit = total_limit}};
}

TensorDict samples() {
  return {{"id", torch::arange(kSamples)},
          {"x", torch::arange(kSamples * 3).to(torch::kFloat).reshape({kSamples, 3}).sin()}};
}

// A model with random numbers of its own, its optimizer, scheduler and loader, as a program makes them.
struct Training {
  struct NetImpl : torch::nn::Module {
    explicit NetImpl(double dropout) : drop(dropout) {
      register_module("in", in);
      register_module("norm", norm);
      register_module("drop", drop);
      register_module("out", out);
    }
    torch::Tensor forward(const torch::Tensor& x) { return out(drop(norm(in(x)).tanh())); }
    torch::nn::Linear in{3, 8};
    torch::nn::BatchNorm1d norm{8};
    torch::nn::Dropout drop;
    torch::nn::Linear out{8, 1};
  };
  TORCH_MODULE(Net);

  Net net;
  torch::optim::AdamW adam;
  torch::optim::StepLR decay;
  PreparedModel<Net> model;
  PreparedOptimizer<torch::optim::AdamW> optimizer;
  PreparedScheduler<torch::optim::StepLR> scheduler;
  PreparedDataLoader<SharedMemoryDataset> loader;

  static Net seeded(double dropout, uint64_t seed) {
    static std::mutex mutex;  // rank threads draw from one generator
    const std::lock_guard lock(mutex);
    torch::manual_seed(seed);
    return Net(dropout);
  }

  explicit Training(Accelerator& accelerator, double dropout = 0, uint64_t seed = 7,
                    std::optional<uint64_t> data_seed = 11)
      : net(seeded(dropout, seed)),
        adam(net->parameters(), torch::optim::AdamWOptions(0.01)),
        decay(adam, 5, 0.5),
        model(accelerator.prepare(net)),
        optimizer(accelerator.prepare(adam)),
        scheduler(accelerator.prepare(decay)),
        loader(
            accelerator.prepare(DataLoader(SharedMemoryDataset::create(accelerator, [] { return samples(); }),
                                           {.batch_size = 4, .shuffle = true, .seed = data_seed}))) {}

  // Runs to the end of epoch `epochs` - 1, or until `on_step(step)` says false; gives the samples of each
  // step.
  std::vector<std::vector<int64_t>> run(Accelerator& accelerator, int64_t epochs,
                                        const std::function<bool(int64_t)>& on_step = {}) {
    std::vector<std::vector<int64_t>> seen;
    while (loader.epoch() < epochs) {
      for (auto& batch : loader) {
        const auto scope = accelerator.accumulate(model);
        optimizer.zero_grad();
        accelerator.backward(model->forward(batch["x"]).square().mean());
        optimizer.step();
        scheduler.step();
        seen.push_back(test::ids(batch["id"]));
        if (on_step && !on_step(optimizer.core()->steps_taken())) return seen;
      }
    }
    return seen;
  }

  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> out;
    for (const auto& entry : state_dict(*net)) out.push_back(entry.second.clone());
    out.push_back(
        torch::tensor(optimizer.core()->optimizer().param_groups()[0].options().get_lr(), torch::kDouble));
    return out;
  }

  static TensorDict state_dict(torch::nn::Module& module) {
    TensorDict out;
    for (const auto& entry : module.named_parameters()) out[entry.key()] = entry.value().detach();
    for (const auto& entry : module.named_buffers()) out[entry.key()] = entry.value();
    return out;
  }
  static TensorDict state_dict(const NetImpl& module) {
    return state_dict(const_cast<torch::nn::Module&>(static_cast<const torch::nn::Module&>(module)));
  }
};

bool equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.equal(y); });
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

void flip_a_byte(const std::string& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const char byte = static_cast<char>(file.get());
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(byte ^ 0x10));
}

using Lines = std::vector<std::string>;

AcceleratorOptions with_log(AcceleratorOptions options, Lines& lines) {
  options.logger = std::make_shared<Logger>(0, LogLevel::kInfo,
                                            [&lines](std::string_view line) { lines.emplace_back(line); });
  options.environment = EnvVars();
  return options;
}

bool says(const Lines& lines, const std::vector<std::string>& parts) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return std::all_of(parts.begin(), parts.end(),
                       [&](const std::string& part) { return line.find(part) != std::string::npos; });
  });
}

}  // namespace

TEST_CASE("a run that goes on from the middle of an epoch equals one that was never left, bit for bit") {
  const TemporaryFolder folder;
  std::vector<torch::Tensor> expected;
  std::vector<std::vector<int64_t>> order;
  {
    Accelerator accelerator{AcceleratorOptions{.environment = EnvVars()}};
    Training straight(accelerator, 0.5);
    order = straight.run(accelerator, 3);
    expected = straight.values();
  }
  REQUIRE(order.size() == 48);
  AcceleratorOptions options = project(folder.path());
  options.environment = EnvVars();
  {
    Accelerator accelerator{options};
    Training first(accelerator, 0.5);
    first.run(accelerator, 3, [&](int64_t step) {
      if (step == 20) CHECK(accelerator.save_state() == folder / "checkpoints/checkpoint_0");
      return step < 22;
    });
  }
  Accelerator accelerator{options};
  Training second(accelerator, 0.5, /*seed=*/99,
                  /*data_seed=*/std::nullopt);  // all comes from the checkpoint
  const LoadedState loaded = accelerator.load_state();
  CHECK(loaded.path == folder / "checkpoints/checkpoint_0");
  CHECK(loaded.optimizer_steps == 20);
  CHECK(loaded.epoch == 1);
  const auto rest = second.run(accelerator, 3);
  CHECK(rest == std::vector(order.begin() + 20, order.end()));
  CHECK(equal(second.values(), expected));
}

TEST_CASE("a run of two ranks goes on with as many ranks, with fewer and with more") {
  const TemporaryFolder folder;
  std::mutex mutex;
  std::map<int, std::vector<std::vector<int64_t>>> straight;
  std::vector<torch::Tensor> expected;
  test::run_ranks(2, [&](Accelerator& accelerator) {
    Training training(accelerator);
    auto seen = training.run(accelerator, 3);
    const std::lock_guard lock(mutex);
    straight[accelerator.process_index()] = std::move(seen);
    if (accelerator.is_main_process()) expected = training.values();
  });
  const int64_t per_epoch = kSamples / 4 / 2;
  test::run_ranks(
      2,
      [&](Accelerator& accelerator) {
        Training training(accelerator);
        training.run(accelerator, 3, [&](int64_t step) {
          if (step == per_epoch + 4) accelerator.save_state();
          return step < per_epoch + 6;
        });
      },
      project(folder.path()));
  const std::string path = folder / "checkpoints/checkpoint_0";
  CHECK(names_in(path) == std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.json",
                                                   "optimizer.safetensors", "random_states_0.safetensors",
                                                   "random_states_1.safetensors", "training_state.json"});
  std::set<int64_t> left;
  for (int64_t id = 0; id < kSamples; ++id) left.insert(id);
  for (const auto& [rank, steps] : straight) {
    for (int64_t step = per_epoch; step < per_epoch + 4; ++step) {
      for (const int64_t id : steps[static_cast<size_t>(step)]) left.erase(id);
    }
  }
  REQUIRE(left.size() == 32);
  for (const int ranks : {2, 1, 3}) {
    INFO(ranks);
    std::multiset<int64_t> seen;
    bool same_order = true;
    bool same_weights = true;
    test::run_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          Training training(accelerator, 0, 5);
          require(accelerator.load_state().world_size == 2, "world size of the checkpoint");
          int64_t in_epoch = training.loader.size();
          auto steps = training.run(accelerator, 3);
          const std::lock_guard lock(mutex);
          for (int64_t step = 0; step < in_epoch; ++step) {
            for (const int64_t id : steps[static_cast<size_t>(step)]) seen.insert(id);
          }
          if (ranks != 2) return;
          const auto& all = straight[accelerator.process_index()];
          same_order = same_order && steps == std::vector(all.begin() + per_epoch + 4, all.end());
          if (accelerator.is_main_process()) same_weights = equal(training.values(), expected);
        },
        project(folder.path()));
    CHECK(same_order);
    CHECK(same_weights);
    // Each once; where the ranks do not divide the batches, the last round repeats some of the epoch's first
    // samples to make them even.
    for (const int64_t id : left) CHECK(seen.count(id) == 1);
    CHECK(seen.size() == (ranks == 3 ? 36 : 32));
  }
}

TEST_CASE("another number of ranks and lost random generators are told") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  test::run_ranks(2, [&](Accelerator& accelerator) {
    Training training(accelerator);
    accelerator.save_state(path);
  });
  Lines lines;
  {
    Accelerator accelerator{with_log({}, lines)};
    Training training(accelerator);
    accelerator.load_state(path);
  }
  CHECK(says(lines, {"was written by 2 ranks and is loaded by 1"}));
  CHECK(says(lines, {"world size 2 -> 1"}));
  CHECK_FALSE(says(lines, {"random generators of rank"}));
  for (const char* const damage : {"a flipped bit", "cut off", "missing"}) {
    INFO(damage);
    const std::string file = path + "/random_states_0.safetensors";
    if (damage == std::string("missing")) {
      std::filesystem::remove(file);
    } else if (damage == std::string("cut off")) {
      std::filesystem::resize_file(file, 100);
    } else {
      flip_a_byte(file, 1000);
    }
    lines.clear();
    Accelerator accelerator{with_log({}, lines)};
    Training training(accelerator);
    accelerator.load_state(path);
    CHECK(says(lines, {"random generators of rank 0 are not restored from " + file}));
    const std::string error =
        test::error_of<CheckpointError>([&] { accelerator.load_state(path, {.strict = true}); });
    CHECK_THAT(error, Catch::Contains("random_states_0.safetensors"));
  }
}

TEST_CASE("checkpoints get numbers, the oldest go, and a run counts on from what it loaded") {
  const TemporaryFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  test::run_ranks(
      2,
      [&](Accelerator& accelerator) {
        Training training(accelerator);
        for (int i = 0; i < 4; ++i) {
          accelerator.save_state();
          if (accelerator.is_main_process()) require(names_in(checkpoints).size() <= 2, "limit");
          accelerator.wait_for_everyone();
        }
      },
      project(folder.path(), 2));
  CHECK(names_in(checkpoints) == std::vector<std::string>{"checkpoint_2", "checkpoint_3"});
  AcceleratorOptions options = project(folder.path(), 2);
  options.environment = EnvVars();
  Accelerator accelerator{options};
  Training training(accelerator);
  CHECK_THAT(
      test::error_of<CheckpointError>([&] { accelerator.save_state(); }),
      Catch::Contains("checkpoint_3 there already, of another run") && Catch::Contains("load_state()"));
  CHECK(accelerator.load_state().iteration == 3);
  CHECK(accelerator.save_state() == checkpoints + "/checkpoint_4");
  CHECK(names_in(checkpoints) == std::vector<std::string>{"checkpoint_3", "checkpoint_4"});
}

TEST_CASE("the newest complete checkpoint is taken; damaged ones are named") {
  const TemporaryFolder folder;
  AcceleratorOptions options = project(folder.path());
  options.environment = EnvVars();
  {
    Accelerator accelerator{options};
    Training training(accelerator);
    training.run(accelerator, 1, [&](int64_t step) {
      accelerator.save_state();
      return step < 5;
    });
  }
  const std::string checkpoints = folder / "checkpoints";
  flip_a_byte(checkpoints + "/checkpoint_4/model.safetensors", 3);
  std::filesystem::remove(checkpoints + "/checkpoint_3/manifest.json");
  std::filesystem::resize_file(checkpoints + "/checkpoint_2/optimizer.safetensors", 100);
  std::filesystem::create_directory(checkpoints + "/checkpoint_9");
  Lines lines;
  Accelerator accelerator{with_log(project(folder.path()), lines)};
  Training training(accelerator);
  CHECK(accelerator.load_state().path == checkpoints + "/checkpoint_1");
  for (const char* name : {"checkpoint_4", "checkpoint_3", "checkpoint_2", "checkpoint_9"})
    CHECK(says(lines, {"passing over", name}));
  // The damaged ones are not in the way of the next.
  CHECK(accelerator.save_state() == checkpoints + "/checkpoint_10");
  CHECK(says(lines, {"checkpoint_4", "model.safetensors"}));
  CHECK_THAT(test::error_of<CheckpointError>([&] { accelerator.load_state(checkpoints + "/checkpoint_4"); }),
             Catch::Contains("can't be loaded") && Catch::Contains("model.safetensors"));
  CHECK_THAT(test::error_of<CheckpointError>([&] { accelerator.load_state(folder / "nowhere"); }),
             Catch::Contains("nowhere"));
}

TEST_CASE("without a checkpoint load_state() is an error and resume() begins afresh") {
  const TemporaryFolder folder;
  AcceleratorOptions options = project(folder.path());
  options.environment = EnvVars();
  Accelerator accelerator{options};
  Training training(accelerator);
  CHECK_FALSE(accelerator.resume().has_value());
  CHECK_THAT(test::error_of<CheckpointError>([&] { accelerator.load_state(); }),
             Catch::Contains("no complete checkpoint in " + folder.path()));
  accelerator.save_state();
  CHECK(accelerator.resume().has_value());
  Accelerator nameless{AcceleratorOptions{.environment = EnvVars()}};
  CHECK_THAT(test::error_of<ConfigError>([&] { nameless.save_state(); }),
             Catch::Contains("automatic_checkpoint_naming"));
  CHECK_THAT(test::error_of<ConfigError>([&] { nameless.load_state(); }), Catch::Contains("project_dir"));
}

TEST_CASE("a checkpoint of other objects is refused with words that say which") {
  const TemporaryFolder folder;
  Accelerator accelerator{AcceleratorOptions{.environment = EnvVars()}};
  {
    Training training(accelerator);
    accelerator.save_state(folder / "a");
  }
  {
    Accelerator other{AcceleratorOptions{.environment = EnvVars()}};
    torch::nn::Linear linear(3, 8);
    torch::optim::AdamW adam(linear->parameters());
    auto prepared = other.prepare(linear, adam);
    CHECK_THAT(test::error_of<CheckpointError>([&] { other.load_state(folder / "a"); }),
               Catch::Contains("holds 1 scheduler") && Catch::Contains("0 in this program"));
  }
  Accelerator other{AcceleratorOptions{.environment = EnvVars()}};
  Training training(other);
  int more = 0;
  other.register_for_checkpointing(more);
  CHECK_THAT(test::error_of<CheckpointError>([&] { other.load_state(folder / "a"); }),
             Catch::Contains("holds 0 objects") && Catch::Contains("register_for_checkpointing()"));
}

namespace {

struct Counter {
  int64_t value = 0;
  std::map<std::string, int64_t> state_dict() const { return {{"value", value}}; }
  void load_state_dict(const std::map<std::string, int64_t>& state) { value = state.at("value"); }
};

}  // namespace

TEST_CASE("objects of the user's and files of hooks are part of a checkpoint") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  std::atomic<int> hooks = 0;
  test::run_ranks(2, [&](Accelerator& accelerator) {
    const int rank = accelerator.process_index();
    Training training(accelerator);
    Counter counter{.value = 40 + rank};
    std::vector<std::string> words = {"rank", std::to_string(rank)};
    torch::nn::Linear average(2, 2);
    average->weight.detach().fill_(3);
    accelerator.register_for_checkpointing(counter);
    accelerator.register_for_checkpointing(words, "words", /*per_rank=*/true);
    accelerator.register_for_checkpointing(*average, "average");
    accelerator.register_save_state_pre_hook([&](const std::string& draft) {
      std::ofstream(draft + "/note_" + std::to_string(rank) + ".txt") << "from rank " << rank;
    });
    const int64_t removed =
        accelerator.register_save_state_pre_hook([&](const std::string&) { hooks += 100; });
    accelerator.remove_state_hook(removed);
    accelerator.register_load_state_pre_hook([&](const std::string& from) {
      require(from == path, "folder of the hook");
      ++hooks;
    });
    accelerator.save_state(path);
    counter.value = -1;
    words.clear();
    average->weight.detach().fill_(0);
    accelerator.load_state(path);
    require(counter.value == 40, "the main process's counts");
    require(words == std::vector<std::string>{"rank", std::to_string(rank)}, "one of each rank");
    require(average->weight.eq(3).all().item<bool>(), "a module");
    require(test::error_of<ConfigError>([&] {
              accelerator.register_for_checkpointing(counter, "words");
            }).find("a file name of its own") != std::string::npos,
            "names are unique");
  });
  CHECK(hooks == 2);
  const auto names = names_in(path);
  for (const char* name : {"custom_checkpoint_0.bin", "words_rank_0.bin", "words_rank_1.bin", "average.bin",
                           "note_0.txt", "note_1.txt"}) {
    INFO(name);
    CHECK(std::find(names.begin(), names.end(), name) != names.end());
  }
  // The manifest vouches for the hooks' files too.
  flip_a_byte(path + "/note_1.txt", 1);
  const auto result = verify_checkpoint(system_files(), path, VerifyLevel::kFull);
  REQUIRE(result.problems.size() == 1);
  CHECK(result.problems[0].path == "note_1.txt");
}

TEST_CASE("what one rank can't save fails on all, and leaves the checkpoint that was there") {
  const TemporaryFolder folder;
  const std::string path = folder / "state";
  test::run_ranks(3, [&](Accelerator& accelerator) {
    Training training(accelerator);
    accelerator.save_state(path);
    training.run(accelerator, 1, [](int64_t step) { return step < 2; });
    for (const int bad : {0, 2}) {
      const int64_t hook = accelerator.register_save_state_pre_hook([&](const std::string&) {
        if (accelerator.process_index() == bad) throw std::runtime_error("no more ink");
      });
      const std::string error = test::error_of([&] { accelerator.save_state(path); });
      test::require_contains(error, "no more ink");
      if (accelerator.process_index() != bad) test::require_contains(error, "saving to " + path);
      accelerator.remove_state_hook(hook);
      accelerator.wait_for_everyone();
      require(names_in(folder.path()) == std::vector<std::string>{"state"}, "no draft is left");
    }
    require(accelerator.load_state(path).optimizer_steps == 0, "the old one");
    accelerator.save_state(path);
  });
  CHECK(verify_checkpoint(system_files(), path, VerifyLevel::kFull).complete());
}

TEST_CASE("an asynchronous save holds the state of its moment") {
  const TemporaryFolder folder;
  for (const bool sharded : {false, true}) {
    INFO(sharded);
    const std::string path = folder / (sharded ? "sharded" : "whole");
    std::mutex mutex;
    std::vector<torch::Tensor> at_save;
    test::run_ranks(2, [&](Accelerator& accelerator) {
      Training training(accelerator);
      training.run(accelerator, 2, [&](int64_t step) {
        if (step != 6 && step != 9) return true;
        accelerator.save_state(path, {.async = true, .sharded = sharded});  // the second waits for the first
        if (step == 9 && accelerator.is_main_process()) {
          const std::lock_guard lock(mutex);
          at_save = training.values();
        }
        return true;
      });
      accelerator.end_training();
    });
    test::run_ranks(1, [&](Accelerator& accelerator) {
      Training training(accelerator, 0, 3);
      require(accelerator.load_state(path).optimizer_steps == 9, "steps");
      require(equal(training.values(), at_save), "values of the moment of the save");
    });
    if (!sharded) continue;
    const auto names = names_in(path);
    CHECK(std::count_if(names.begin(), names.end(), [](const std::string& name) {
            return name.find("-of-00002.safetensors") != std::string::npos;
          }) == 4);
    CHECK(std::count(names.begin(), names.end(), "model.safetensors.index.json") == 1);
    CHECK(std::count(names.begin(), names.end(), "optimizer.safetensors.index.json") == 1);
  }
}

TEST_CASE("a failure of a write in the background comes at the next call, on all ranks") {
  const TemporaryFolder folder;
  std::atomic<int> told = 0;
  std::vector<std::unique_ptr<test::FaultFileSystem>> files;
  for (int rank = 0; rank < 2; ++rank) {
    files.push_back(std::make_unique<test::FaultFileSystem>(
        system_files(), rank == 1 ? test::Fault::kFailOnce : test::Fault::kNone, 2, ENOSPC));
  }
  test::run_threads(2, [&](int rank, const Store& store, const std::string& job) {
    AcceleratorOptions options = test::thread_rank_options(store, rank, 2, job);
    options.files = files[static_cast<size_t>(rank)].get();
    Accelerator accelerator(options);
    Training training(accelerator);
    accelerator.save_state(folder / "a", {.async = true});
    const std::string error = test::error_of([&] { accelerator.save_state(folder / "b"); });
    if (error.find(rank == 1 ? "No space left on device" : "rank 1: ") != std::string::npos) ++told;
    accelerator.save_state(folder / "c");
    accelerator.end_training();
  });
  CHECK(files[1]->has_struck());
  CHECK(told == 2);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"c"});
}

TEST_CASE("a second asynchronous save is refused while the first writes, where that is wanted") {
  const TemporaryFolder folder;
  // Whoever writes waits until he is let.
  class WaitingFiles final : public test::FaultFileSystem {
   public:
    WaitingFiles() : FaultFileSystem(system_files(), test::Fault::kNone, 0) {}
    std::unique_ptr<WritableFile> create(const std::string& path, unsigned mode) override {
      while (closed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return FaultFileSystem::create(path, mode);
    }
    void create_directory(const std::string& path) override {
      FaultFileSystem::create_directory(path);
      closed = closes.load();  // the draft is there; its files are next
    }
    std::atomic<bool> closed = false;
    std::atomic<bool> closes = false;
  };
  WaitingFiles files;
  Accelerator accelerator{AcceleratorOptions{.environment = EnvVars(), .files = &files}};
  Training training(accelerator);
  files.closes = true;
  accelerator.save_state(folder / "a", {.async = true});
  CHECK_THAT(test::error_of<CheckpointError>(
                 [&] { accelerator.save_state(folder / "b", {.if_busy = IfBusy::kRefuse}); }),
             Catch::Contains("an earlier save still writes") && Catch::Contains(folder / "a"));
  files.closes = false;
  files.closed = false;
  accelerator.save_state(folder / "b");  // waits
  CHECK(names_in(folder.path()) == std::vector<std::string>{"a", "b"});
}

TEST_CASE("a gradient scaler goes on with its scale and its count") {
  const TemporaryFolder folder;
  AcceleratorOptions options;
  options.mixed_precision = "fp16";
  options.grad_scaler = {.init_scale = 1024, .growth_interval = 3};
  options.environment = EnvVars();
  double scale = 0;
  {
    Accelerator accelerator{options};
    Training training(accelerator);
    training.run(accelerator, 1, [](int64_t step) { return step < 7; });
    scale = accelerator.scaler()->get_scale();
    CHECK(accelerator.scaler()->state().growth_tracker == 1);
    accelerator.save_state(folder / "a");
  }
  CHECK(scale == 4096);
  Accelerator accelerator{options};
  Training training(accelerator);
  accelerator.load_state(folder / "a");
  CHECK(accelerator.scaler()->get_scale() == scale);
  CHECK(accelerator.scaler()->state().growth_tracker == 1);
}

TEST_CASE("a run that is asked to end finishes its accumulation window and its epoch first") {
  const TemporaryFolder folder;
  AcceleratorOptions options = project(folder.path());
  options.environment = EnvVars();
  options.gradient_accumulation_steps = 4;
  Accelerator accelerator{options};
  Training training(accelerator);
  PreemptionSignal::watch();
  // The batch after which the run ended; 0: it went through the epoch.
  const auto ends_after = [&](int64_t asked) {
    PreemptionSignal::set(false);
    int64_t batch = 0;
    try {
      for (auto& data : training.loader) {
        const auto scope = accelerator.accumulate(training.model);
        training.optimizer.zero_grad();
        accelerator.backward(training.model->forward(data["x"]).square().mean());
        training.optimizer.step();
        if (++batch == asked) PreemptionSignal::set(true);
        accelerator.save_if_preempted();
      }
    } catch (const Preempted& error) {
      CHECK(error.exit_code() == 75);
      return batch;
    }
    return int64_t{0};
  };
  CHECK(ends_after(2) == 4);
  CHECK(ends_after(8) == 8);
  CHECK(ends_after(15) == 0);  // the epoch's last window: what follows the epoch runs first
  CHECK_THROWS_AS(accelerator.save_if_preempted(), Preempted);
  PreemptionSignal::set(false);
  Accelerator nameless{AcceleratorOptions{.environment = EnvVars()}};
  CHECK_THROWS_AS(nameless.save_if_preempted(), ConfigError);  // before anybody asks
}

TEST_CASE(
    "after a save that was stopped or failed at any point a run goes on from the old or the new state") {
  enum class Way { kFirst, kRotate, kAsync, kReplace };
  for (const Way way : {Way::kFirst, Way::kRotate, Way::kAsync, Way::kReplace}) {
    struct Kind {
      test::Fault fault;
      int error;
    };
    for (const Kind kind : {Kind{test::Fault::kStop, EIO}, Kind{test::Fault::kFailOnce, ENOSPC},
                            Kind{test::Fault::kFailFromThenOn, ENOSPC}, Kind{test::Fault::kFailOnce, EIO},
                            Kind{test::Fault::kFailFromThenOn, EIO}}) {
      bool struck = true;
      int64_t n = 1;
      for (; struck && n < 1000; ++n) {
        INFO("way " << static_cast<int>(way) << " fault " << static_cast<int>(kind.fault) << " error "
                    << kind.error << " operation " << n);
        const TemporaryFolder folder("/dev/shm");  // thousands of saves: no disk has to turn for them
        AcceleratorOptions options = project(folder.path(), way == Way::kRotate ? 2 : 9);
        options.environment = EnvVars();
        options.logger = std::make_shared<Logger>(0, LogLevel::kOff);
        const std::string fixed = way == Way::kReplace ? folder / "checkpoints/checkpoint_1" : "";
        if (way != Way::kFirst) {
          Accelerator accelerator{options};
          torch::nn::Linear linear(2, 2);
          auto model = accelerator.prepare(linear);
          for (const int value : {0, 1}) {
            linear->weight.detach().fill_(value);
            accelerator.save_state();
          }
        }
        bool saved = false;
        test::FaultFileSystem faulty(system_files(), kind.fault, n, kind.error);
        {
          options.files = &faulty;
          options.project_config.iteration = way == Way::kFirst ? 0 : 2;
          Accelerator accelerator{options};
          torch::nn::Linear linear(2, 2);
          auto model = accelerator.prepare(linear);
          linear->weight.detach().fill_(2);
          try {
            accelerator.save_state(fixed, {.async = way == Way::kAsync});
            accelerator.end_training();
            saved = true;
          } catch (const std::exception&) {
          }
        }
        struck = faulty.has_struck();
        options.files = nullptr;
        options.project_config.iteration = 0;
        Accelerator accelerator{options};
        torch::nn::Linear linear(2, 2);
        auto model = accelerator.prepare(linear);
        const auto loaded = accelerator.resume();
        CHECK((loaded.has_value() || (way == Way::kFirst && !saved)));
        if (loaded) {
          const double value = linear->weight.mean().item<double>();
          CHECK((value == 2 || (!saved && value == 1)));
        }
        accelerator.save_state();  // and the next save works and leaves no litter
        for (const std::string& name : names_in(folder / "checkpoints"))
          CHECK(name.find('.') == std::string::npos);
      }
      CHECK(n > 10);
      CHECK_FALSE(struck);
    }
  }
}

TEST_CASE(
    "a model in shards has an index that names each tensor once, and no file of an earlier model stays") {
  const TemporaryFolder folder;
  Accelerator accelerator{AcceleratorOptions{.environment = EnvVars()}};
  torch::nn::Sequential net(torch::nn::Linear(16, 16), torch::nn::Linear(16, 16), torch::nn::Linear(16, 4));
  auto model = accelerator.prepare(net);
  const std::string index = accelerator.save_model(model, folder.path(), {.max_shard_size = "1200"});
  CHECK(index == folder / "model.safetensors.index.json");
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                 "model-00003-of-00003.safetensors", "model.safetensors.index.json"});
  const auto json = nlohmann::json::parse(std::ifstream(index));
  CHECK(json.at("metadata").at("total_size") == (2 * 16 * 16 + 2 * 16 + 4 * 16 + 4) * 4);
  CHECK(json.at("weight_map").size() == 6);
  torch::nn::Sequential other(torch::nn::Linear(16, 16), torch::nn::Linear(16, 16), torch::nn::Linear(16, 4));
  CHECK(load_checkpoint_in_model(*other, folder.path()).complete());
  for (const auto& entry : net->named_parameters())
    CHECK(other->named_parameters()[entry.key()].equal(entry.value()));
  CHECK(accelerator.save_model(model, folder.path()) == folder / "model.safetensors");
  CHECK(names_in(folder.path()) == std::vector<std::string>{"model.safetensors"});
}

TEST_CASE("weights that do not fit are listed, and loaded as far as they fit where that is wanted") {
  const TemporaryFolder folder;
  torch::nn::Linear tied(2, 2);
  TensorDict saved = {{"in.weight", torch::ones({2, 3})},
                      {"in.bias", torch::ones({2}, torch::kBFloat16)},
                      {"out.weight", torch::ones({5, 2})},
                      {"left", torch::ones({1})}};
  saved["in.copy"] = saved["in.weight"];
  save_weights(system_files(), saved, folder.path());
  const WeightSource source = WeightSource::open(folder.path());
  CHECK(source.names().size() == 5);  // the shared one too
  const auto targets = [] {
    return TensorDict{{"in.weight", torch::zeros({2, 3})},
                      {"in.copy", torch::zeros({2, 3})},
                      {"in.bias", torch::zeros({2})},
                      {"out.weight", torch::zeros({4, 2})},
                      {"out.bias", torch::zeros({4})}};
  };
  TensorDict strict = targets();
  const std::string error = test::error_of<CheckpointError>([&] { load_weights(strict, source); });
  CHECK_THAT(error, Catch::Contains("missing: out.bias") && Catch::Contains("not in the model: left") &&
                        Catch::Contains("out.weight: [5, 2] in the file, [4, 2] in the model") &&
                        Catch::Contains("strict"));
  CHECK(strict.at("in.weight").eq(0).all().item<bool>());  // nothing was changed
  TensorDict loose = targets();
  const LoadWeightsReport report = load_weights(loose, source, {.strict = false});
  CHECK(report.missing == std::vector<std::string>{"out.bias"});
  CHECK(report.unexpected == std::vector<std::string>{"left"});
  CHECK(report.converted == std::vector<std::string>{"in.bias: BFloat16 to Float"});
  CHECK(loose.at("in.weight").eq(1).all().item<bool>());
  CHECK(loose.at("in.copy").eq(1).all().item<bool>());
  CHECK(loose.at("in.bias").eq(1).all().item<bool>());
  CHECK(loose.at("out.weight").eq(0).all().item<bool>());
  TensorDict renamed = {{"weight", torch::zeros({2, 3})}};
  CHECK(load_weights(renamed, source,
                     {.rename = [](const std::string& name) { return name == "in.weight" ? "weight" : ""; }})
            .complete());
  CHECK(renamed.at("weight").eq(1).all().item<bool>());
}
