#include "accelerate/checkpoint/optimizer_file.h"

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/safetensors.h"
#include "accelerate/core/error.h"
#include "support/temporary_folder.h"
#include "test_support.h"

#include "support/checks.h"

using namespace accelerate;
using test::error_of;
using test::TemporaryFolder;

namespace {

// Sign descent with a momentum and a count: what a user's own optimizer looks like.
struct SignOptions : torch::optim::OptimizerCloneableOptions<SignOptions> {
  SignOptions(double lr = 0.01) : lr_(lr) {}  // NOLINT: LibTorch's load() makes it from a number
  TORCH_ARG(double, lr);
  TORCH_ARG(double, limit) = std::numeric_limits<double>::infinity();
  TORCH_ARG(int64_t, every) = 2;
  TORCH_ARG(std::string, mode) = "plain";
  TORCH_ARG(std::optional<double>, decay) = std::nullopt;
  TORCH_ARG(std::vector<double>, scales) = {1.0, 0.1};

 public:
  void serialize(torch::serialize::OutputArchive& archive) const override {
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(limit);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(every);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(mode);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(decay);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(scales);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, limit);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, every);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::string, mode);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG_OPTIONAL(double, decay);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::vector<double>, scales);
  }
  double get_lr() const override { return lr(); }
  void set_lr(double lr) override { lr_ = lr; }
};

struct SignParamState : torch::optim::OptimizerCloneableParamState<SignParamState> {
  TORCH_ARG(int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, sum);
  TORCH_ARG(torch::Tensor, unused);

 public:
  void serialize(torch::serialize::OutputArchive& archive) const override {
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
    _TORCH_OPTIM_SERIALIZE_TORCH_ARG(unused);
    torch::serialize::OutputArchive inner(archive.compilation_unit());
    inner.write("value", sum(), /*is_buffer=*/true);
    archive.write("sum", inner);
  }
  void serialize(torch::serialize::InputArchive& archive) override {
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(int64_t, step);
    _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(torch::Tensor, unused);
    torch::serialize::InputArchive inner;
    archive.read("sum", inner);
    inner.read("value", sum(), /*is_buffer=*/true);
  }
};

class Sign : public torch::optim::Optimizer {
 public:
  explicit Sign(std::vector<torch::Tensor> parameters, SignOptions options = {})
      : Optimizer(std::move(parameters), std::make_unique<SignOptions>(options)) {}

  torch::Tensor step(LossClosure closure = nullptr) override {
    const torch::Tensor loss = closure();
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      const auto& options = static_cast<SignOptions&>(group.options());
      for (auto& parameter : group.params()) {
        auto& place = state_[parameter.unsafeGetTensorImpl()];
        if (place == nullptr) {
          place = std::make_unique<SignParamState>();
          static_cast<SignParamState&>(*place).sum(torch::zeros_like(parameter));
        }
        auto& state = static_cast<SignParamState&>(*place);
        state.step(state.step() + 1);
        state.sum().mul_(0.9).add_(parameter.grad());
        if (state.step() % options.every() == 0) parameter.sub_(state.sum().sign(), options.lr());
      }
    }
    return loss;
  }
  void save(torch::serialize::OutputArchive& archive) const override { serialize(*this, archive); }
  void load(torch::serialize::InputArchive& archive) override { serialize(*this, archive); }

 private:
  template <typename Self, typename Archive>
  static void serialize(Self& self, Archive& archive) {
    _TORCH_OPTIM_SERIALIZE_WITH_TEMPLATE_ARG(Sign);
  }
};

// The same without load().
class Forgetful : public Sign {
 public:
  using Sign::Sign;
  void load(torch::serialize::InputArchive&) override {}
};

torch::nn::Sequential make_net(int64_t width = 5) {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(4, width), torch::nn::Tanh(), torch::nn::Linear(width, 2));
}

ParameterName names_of(const torch::nn::Sequential& net) {
  return [net](const at::Tensor& tensor) -> std::string {
    for (const auto& entry : net->named_parameters()) {
      if (entry.value().is_same(tensor)) return entry.key();
    }
    return "";
  };
}

ReadTensor reader(const TensorDict& tensors) {
  return [tensors](const std::string& name) {
    const auto found = tensors.find(name);
    return found == tensors.end() ? at::Tensor() : found->second;
  };
}

void step(torch::nn::Sequential& net, torch::optim::Optimizer& optimizer, int64_t first, int64_t steps) {
  for (int64_t i = first; i < first + steps; ++i) {
    const torch::Tensor x = torch::sin(torch::arange(12.0).reshape({3, 4}) + static_cast<double>(i));
    optimizer.step([&] {
      optimizer.zero_grad();
      const torch::Tensor loss = torch::mse_loss(net->forward(x), torch::cos(x.slice(1, 0, 2)));
      loss.backward();
      return loss;
    });
  }
}

void copy_weights(const torch::nn::Sequential& from, torch::nn::Sequential& to) {
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < from->parameters().size(); ++i) to->parameters()[i].copy_(from->parameters()[i]);
}

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const torch::nn::Sequential&)>;

// Five steps, through files into a fresh optimizer that was made with other rates, five more on both.
void check_goes_on(const Make& make, const Make& make_other) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/optimizer.safetensors";
  auto net = make_net(), other_net = make_net();
  const auto optimizer = make(net), other = make_other(other_net);
  step(net, *optimizer, 0, 5);
  copy_weights(net, other_net);

  const OptimizerState state = capture_optimizer(*optimizer, names_of(net));
  CHECK(save_safetensors(system_files(), path, state.tensors).empty());
  {
    const TensorDict file = load_safetensors(path);  // gone when the training goes on
    restore_optimizer(*other, names_of(other_net), state.json, reader(file), path);
  }
  CHECK(capture_optimizer(*other, names_of(other_net)).json == state.json);
  step(net, *optimizer, 5, 5);
  step(other_net, *other, 5, 5);
  for (size_t i = 0; i < net->parameters().size(); ++i) {
    CHECK(net->parameters()[i].equal(other_net->parameters()[i]));
    CHECK_FALSE(net->parameters()[i].equal(make_net()->parameters()[i]));
  }
}

template <class Optimizer, class Options>
Make maker(Options options) {
  return [=](const torch::nn::Sequential& net) {
    return std::make_unique<Optimizer>(net->parameters(), options);
  };
}

Make two_groups(double lr, double beta) {
  return [=](const torch::nn::Sequential& net) {
    using torch::optim::AdamWOptions;
    const auto all = net->parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<torch::Tensor>{all[3], all[0]},
                        std::make_unique<AdamWOptions>(AdamWOptions(lr).betas({beta, 0.95})));
    groups.emplace_back(std::vector<torch::Tensor>{all[1], all[2]},
                        std::make_unique<AdamWOptions>(AdamWOptions(lr / 3).weight_decay(0.3)));
    return std::make_unique<torch::optim::AdamW>(groups, AdamWOptions(0.5));
  };
}

// An AdamW after two steps, with its net and what was captured.
struct Trained {
  torch::nn::Sequential net = make_net();
  std::unique_ptr<torch::optim::Optimizer> optimizer = two_groups(0.01, 0.8)(net);
  OptimizerState state;
  Trained() {
    step(net, *optimizer, 0, 2);
    state = capture_optimizer(*optimizer, names_of(net));
  }
  // The message of a restore of this state into `other`, which must come out of it as it went in.
  std::string error(torch::nn::Sequential& other_net, torch::optim::Optimizer& other, const std::string& json,
                    const TensorDict& tensors) const {
    const OptimizerState before = capture_optimizer(other, names_of(other_net));
    TensorDict copies;
    for (const auto& [name, tensor] : before.tensors) copies[name] = tensor.clone();
    std::string text = error_of<CheckpointError>(
        [&] { restore_optimizer(other, names_of(other_net), json, reader(tensors), "o.json"); });
    const OptimizerState after = capture_optimizer(other, names_of(other_net));
    CHECK(after.json == before.json);
    CHECK(after.tensors.size() == copies.size());
    for (const auto& [name, tensor] : after.tensors) CHECK(tensor.equal(copies.at(name)));
    return text;
  }
  std::string error(const std::string& json, const TensorDict& tensors) {
    return error(net, *optimizer, json, tensors);
  }
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("training goes on bit for bit after an optimizer came from its files") {
  using namespace torch::optim;
  SECTION("SGD, momentum") {
    check_goes_on(maker<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.1)),
                  maker<SGD>(SGDOptions(0.7).weight_decay(0.1)));
  }
  SECTION("SGD, nesterov") {
    check_goes_on(maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true)), maker<SGD>(SGDOptions(0.7)));
  }
  SECTION("SGD without state") {
    check_goes_on(maker<SGD>(SGDOptions(0.1)), maker<SGD>(SGDOptions(0.7).momentum(0.3)));
  }
  SECTION("Adam, amsgrad") {
    check_goes_on(maker<Adam>(AdamOptions(0.01).amsgrad(true)), maker<Adam>(AdamOptions(0.02)));
  }
  SECTION("AdamW, two groups") {
    check_goes_on(two_groups(0.01, 0.8), two_groups(0.1, 0.1));
  }
  SECTION("Adagrad") {
    check_goes_on(maker<Adagrad>(AdagradOptions(0.1).lr_decay(0.01)),
                  maker<Adagrad>(AdagradOptions(0.2).initial_accumulator_value(3)));
  }
  SECTION("RMSprop, centered, momentum") {
    check_goes_on(maker<RMSprop>(RMSpropOptions(0.01).centered(true).momentum(0.5)),
                  maker<RMSprop>(RMSpropOptions(0.02)));
  }
  SECTION("LBFGS") {
    check_goes_on(maker<LBFGS>(LBFGSOptions(0.1).max_iter(3).history_size(4)),
                  maker<LBFGS>(LBFGSOptions(1).max_iter(7)));
    check_goes_on(maker<LBFGS>(LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe")),
                  maker<LBFGS>(LBFGSOptions(0.5)));
  }
  SECTION("a user's own") {
    check_goes_on(maker<Sign>(SignOptions(0.02).mode("signed").decay(0.25).scales({0.1, 1e-300})),
                  maker<Sign>(SignOptions(0.5).limit(1.5).every(3)));
  }
}

TEST_CASE("the file goes by names and holds numbers exactly") {
  Trained trained;
  const auto json = nlohmann::json::parse(trained.state.json);
  CHECK(json["format_version"] == 1);
  CHECK(json["type"] == "AdamW");
  CHECK(json["param_groups"][0]["params"] == std::vector<std::string>{"2.bias", "0.weight"});
  CHECK(json["param_groups"][0]["options"]["betas"] == std::vector<double>{0.8, 0.95});
  CHECK(json["param_groups"][1]["options"]["lr"].get<double>() == 0.01 / 3);
  CHECK(json["state"]["0.weight"]["step"] == 2);
  CHECK(trained.state.tensors.size() == 8);
  // The optimizer's own memory.
  const auto& state = static_cast<torch::optim::AdamWParamState&>(
      *trained.optimizer->state().at(trained.net->parameters()[0].unsafeGetTensorImpl()));
  CHECK(trained.state.tensors.at("0.weight.exp_avg").data_ptr() == state.exp_avg().data_ptr());
  // The order within a group has no say.
  auto net = make_net();
  auto all = net->parameters();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{all[0], all[3]});
  groups.emplace_back(std::vector<torch::Tensor>{all[2], all[1]});
  torch::optim::AdamW other(groups, torch::optim::AdamWOptions(1));
  restore_optimizer(other, names_of(net), trained.state.json, reader(trained.state.tensors), "o.json");
  for (const auto& [name, tensor] : capture_optimizer(other, names_of(net)).tensors) {
    CHECK(tensor.equal(trained.state.tensors.at(name)));
  }
}

TEST_CASE("numbers that JSON lacks, and numbers that a hand wrote") {
  auto net = make_net();
  Sign optimizer(net->parameters(), SignOptions(0.1 + 0.2).scales({-0.0, 5e-324, std::nan("")}));
  const std::string json = capture_optimizer(optimizer, names_of(net)).json;
  CHECK_THAT(json, ContainsSubstring("0.30000000000000004"));
  Sign other(net->parameters(), SignOptions(1).limit(2));
  restore_optimizer(other, names_of(net), json, reader({}), "o.json");
  const auto& options = static_cast<SignOptions&>(other.param_groups()[0].options());
  CHECK(options.lr() == 0.1 + 0.2);
  CHECK(std::isinf(options.limit()));
  CHECK(std::signbit(options.scales()[0]));
  CHECK(options.scales()[1] == 5e-324);
  CHECK(std::isnan(options.scales()[2]));
  restore_optimizer(other, names_of(net), replaced(json, "0.30000000000000004", "2"), reader({}), "o.json");
  CHECK(options.lr() == 2.0);
}

TEST_CASE("dtypes and strides are kept, and state that the file lacks goes") {
  auto net = make_net();
  net->to(torch::kBFloat16);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  for (const auto& parameter : net->parameters()) {
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(torch::full_like(parameter, 1.0 / 3, torch::kDouble));
    if (parameter.dim() == 2) optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  const OptimizerState state = capture_optimizer(optimizer, names_of(net));
  torch::optim::SGD other(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
  for (auto& parameter : net->parameters()) parameter.mutable_grad() = torch::ones_like(parameter);
  other.step();
  CHECK(other.state().size() == 4);
  restore_optimizer(other, names_of(net), state.json, reader(state.tensors), "o.json");
  CHECK(other.state().size() == 2);
  const auto back = capture_optimizer(other, names_of(net)).tensors.at("0.weight.momentum_buffer");
  CHECK(back.scalar_type() == torch::kDouble);
  CHECK(back.equal(state.tensors.at("0.weight.momentum_buffer")));
  CHECK(back.data_ptr() != state.tensors.at("0.weight.momentum_buffer").data_ptr());
}

TEST_CASE("parameters without a name, and states without a parameter") {
  auto net = make_net();
  auto parameters = net->parameters();
  parameters.push_back(torch::ones({7}, torch::requires_grad()));
  torch::optim::SGD optimizer(parameters, 0.1);
  CHECK_THAT(error_of<CheckpointError>([&] { capture_optimizer(optimizer, names_of(net)); }),
             ContainsSubstring("parameter 4 of group 0 of the optimizer (shape [7]) has no name"));
  torch::optim::SGD twice({parameters[0], parameters[0]}, 0.1);
  CHECK_THAT(error_of<CheckpointError>([&] { capture_optimizer(twice, names_of(net)); }),
             ContainsSubstring("is the second one called '0.weight'"));
  torch::optim::SGD stray(net->parameters(), 0.1);
  stray.state()[parameters[4].unsafeGetTensorImpl()] = std::make_unique<torch::optim::SGDParamState>();
  CHECK_THAT(error_of<CheckpointError>([&] { capture_optimizer(stray, names_of(net)); }),
             ContainsSubstring("state that belongs to none of its parameters"));
}

TEST_CASE("a file that does not fit says why, and leaves the optimizer as it was") {
  Trained trained;
  const std::string& json = trained.state.json;
  const TensorDict& tensors = trained.state.tensors;
  SECTION("another type") {
    torch::optim::SGD other(trained.net->parameters(), 0.1);
    CHECK_THAT(trained.error(trained.net, other, json, tensors),
               ContainsSubstring("o.json is for another optimizer: written by AdamW, this is SGD"));
  }
  SECTION("other parameters") {
    torch::nn::Sequential deeper(torch::nn::Linear(4, 5), torch::nn::Linear(5, 2), torch::nn::Linear(2, 2),
                                 torch::nn::Linear(2, 2));
    torch::optim::AdamW other(deeper->parameters());
    const std::string text = trained.error(deeper, other, json, tensors);
    CHECK_THAT(text, ContainsSubstring("it lacks '1.bias', '1.weight', '3.bias' and 1 more"));
    torch::nn::Sequential smaller(torch::nn::Linear(4, 5));
    torch::optim::AdamW less(smaller->parameters());
    CHECK_THAT(trained.error(smaller, less, json, tensors),
               ContainsSubstring("this optimizer lacks '2.bias', '2.weight'"));
  }
  SECTION("other groups") {
    torch::optim::AdamW one(trained.net->parameters());
    CHECK_THAT(trained.error(trained.net, one, json, tensors),
               ContainsSubstring("another number of parameter groups: expected 1, got 2"));
    auto all = trained.net->parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<torch::Tensor>{all[0]});
    groups.emplace_back(std::vector<torch::Tensor>{all[1], all[2], all[3]});
    torch::optim::AdamW moved(groups);
    CHECK_THAT(trained.error(trained.net, moved, json, tensors),
               ContainsSubstring("has '2.bias' in another parameter group: expected group 1, got group 0"));
  }
  SECTION("other shapes") {
    auto wide = make_net(6);
    const auto other = two_groups(0.01, 0.8)(wide);
    CHECK_THAT(trained.error(wide, *other, json, tensors),
               ContainsSubstring("does not fit parameter '0.bias': expected shape [6], got shape [5]"));
  }
  SECTION("a tensor is missing") {
    TensorDict less = tensors;
    less.erase("2.weight.exp_avg_sq");
    CHECK_THAT(trained.error(json, less),
               ContainsSubstring("o.json: the tensor '2.weight.exp_avg_sq' is missing"));
  }
  SECTION("damaged text") {
    for (size_t length = 0; length < json.size(); length += 7) {
      CHECK_THAT(trained.error(json.substr(0, length), tensors),
                 ContainsSubstring("o.json is no complete state of an optimizer"));
    }
    const std::vector<std::pair<std::string, std::string>> changes = {
        {"\"params\"", "\"parms\""},
        {"\"step\": 2", "\"step\": \"two\""},
        {"\"step\"", "\"stop\""},
        {"\"amsgrad\": false", "\"amsgrad\": 3"},
        {"\"lr\": 0.01", "\"rate\": 0.01"},
        {"\"eps\": 1e-08", "\"eps\": {\"float\": \"pi\"}"},
        {"\"0.bias\": {", "\"9.bias\": {"},
        {"\"2.bias\",", "\"0.weight\","},
        {"\"type\": \"AdamW\"", "\"type\": 7"}};
    for (const auto& [from, to] : changes) {
      INFO(to);
      CHECK_THAT(trained.error(replaced(json, from, to), tensors),
                 ContainsSubstring("o.json is no complete state of an optimizer"));
    }
  }
  SECTION("a newer format") {
    CHECK_THAT(trained.error(replaced(json, "\"format_version\": 1", "\"format_version\": 2"), tensors),
               ContainsSubstring("newer format: expected format_version 1 at most, got 2"));
  }
  SECTION("LBFGS in another order") {
    torch::optim::LBFGS lbfgs(trained.net->parameters());
    step(trained.net, lbfgs, 0, 1);
    const OptimizerState state = capture_optimizer(lbfgs, names_of(trained.net));
    auto all = trained.net->parameters();
    std::reverse(all.begin(), all.end());
    torch::optim::LBFGS other(all);
    CHECK_THAT(trained.error(trained.net, other, state.json, state.tensors),
               ContainsSubstring("LBFGS's parameters in another order"));
  }
  SECTION("an own optimizer without load()") {
    Forgetful optimizer(trained.net->parameters());
    step(trained.net, optimizer, 0, 1);
    const OptimizerState state = capture_optimizer(optimizer, names_of(trained.net));
    Forgetful other(trained.net->parameters(), SignOptions(0.5));
    CHECK_THAT(trained.error(trained.net, other, state.json, state.tensors),
               ContainsSubstring("Forgetful did not take the state of parameter '0.bias'"));
  }
}
