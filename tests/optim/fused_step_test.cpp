// Prepared optimizers step as Python's fused ones and as LibTorch's own. tests/parity/optimizer_steps.json
// was written by optimizer_steps_gen.py beside it.
#include "accelerate/optim/fused_step.h"

#include <sstream>

#include "optim_test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

using Json = nlohmann::json;
using OptimizerPtr = std::shared_ptr<torch::optim::Optimizer>;
using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

template <class Options>
Options adam_options(const Json& json) {
  Options options(json.at("lr").get<double>());
  const std::vector<double> betas = json.value("betas", std::vector<double>{0.9, 0.999});
  return options.betas({betas[0], betas[1]})
      .eps(json.value("eps", 1e-8))
      .weight_decay(json.value("weight_decay", options.weight_decay()))
      .amsgrad(json.value("amsgrad", false));
}

// The optimizer of a case. The last weight is a group of its own with another rate.
OptimizerPtr make_optimizer(const Json& one, const std::vector<at::Tensor>& weights, double second_rate) {
  const Json& json = one.at("options");
  const std::string kind = one.at("kind");
  const auto build = [&]<class O>(std::type_identity<O>, auto options) -> OptimizerPtr {
    auto second = options;
    second.lr(second_rate);
    ParamGroups groups;
    groups.emplace_back(std::vector<at::Tensor>(weights.begin(), weights.end() - 1));
    groups.emplace_back(std::vector<at::Tensor>{weights.back()}, std::make_unique<decltype(options)>(second));
    return std::make_shared<O>(groups, options);
  };
  using namespace torch::optim;
  if (kind == "Adam") return build(std::type_identity<Adam>(), adam_options<AdamOptions>(json));
  if (kind == "AdamW") return build(std::type_identity<AdamW>(), adam_options<AdamWOptions>(json));
  if (kind == "Adagrad") {
    return build(std::type_identity<Adagrad>(),
                 AdagradOptions(json.at("lr").get<double>())
                     .lr_decay(json.value("lr_decay", 0.0))
                     .weight_decay(json.value("weight_decay", 0.0))
                     .initial_accumulator_value(json.value("initial_accumulator_value", 0.0))
                     .eps(json.value("eps", 1e-10)));
  }
  return build(std::type_identity<SGD>(), SGDOptions(json.at("lr").get<double>())
                                              .momentum(json.value("momentum", 0.0))
                                              .dampening(json.value("dampening", 0.0))
                                              .weight_decay(json.value("weight_decay", 0.0))
                                              .nesterov(json.value("nesterov", false)));
}

// A part of the state of one weight under Python's name; undefined if it is not there.
at::Tensor state_of(const std::string& kind, torch::optim::Optimizer& optimizer, const at::Tensor& weight,
                    const std::string& name) {
  using namespace torch::optim;
  const auto found = optimizer.state().find(weight.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return {};
  const auto moments = [&](const auto& state) {
    return name == "exp_avg"      ? state.exp_avg()
           : name == "exp_avg_sq" ? state.exp_avg_sq()
                                  : state.max_exp_avg_sq();
  };
  if (kind == "Adam") return moments(static_cast<AdamParamState&>(*found->second));
  if (kind == "AdamW") return moments(static_cast<AdamWParamState&>(*found->second));
  if (kind == "Adagrad") return static_cast<AdagradParamState&>(*found->second).sum();
  return static_cast<SGDParamState&>(*found->second).momentum_buffer();
}

int64_t step_count(torch::optim::Optimizer& optimizer, const at::Tensor& weight) {
  return static_cast<torch::optim::AdamWParamState&>(*optimizer.state().at(weight.unsafeGetTensorImpl()))
      .step();
}

// What is left of a run: the sums of the weights after every tenth step, the weights, the optimizer.
struct Run {
  std::shared_ptr<Weights> net;
  OptimizerPtr optimizer;
  std::vector<double> sums;
  int64_t fused_calls = 0;
};

Run run(const Json& file, const Json& one, bool fused) {
  const auto dtype = dtype_named(one.at("dtype"));
  auto generator = at::make_generator<at::CPUGeneratorImpl>(file.at("seed").get<uint64_t>());
  const auto draw = [&](const std::vector<int64_t>& shape) {
    return torch::randn(shape, generator).to(dtype);
  };
  std::vector<at::Tensor> start;
  for (const auto& shape : file.at("shapes")) start.push_back(draw(shape));
  Run out{.net = std::make_shared<Weights>(start), .optimizer = nullptr, .sums = {}};
  out.optimizer = make_optimizer(one, out.net->all, file.at("second_rate"));
  AcceleratorOptions options = alone();
  options.fused_optimizer = fused;
  Accelerator accelerator(options);
  auto [model, optimizer] = accelerator.prepare(out.net, out.optimizer);
  const CallCounter calls("aten::_fused_");
  for (int64_t step = 0; step < file.at("steps").get<int64_t>(); ++step) {
    for (const at::Tensor& weight : out.net->all) {
      weight.mutable_grad() = weight.detach() + draw(weight.sizes().vec());
    }
    optimizer.step();
    if (step % 10 == 9) out.sums.push_back(flat(out.net->all).sum().item<double>());
  }
  out.fused_calls = calls.count();
  return out;
}

void copy_state(const torch::optim::Optimizer& from, torch::optim::Optimizer& to) {
  torch::serialize::OutputArchive out;
  from.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  to.load(in);
}

}  // namespace

TEST_CASE("220 steps of every optimizer equal Python's fused ones, and LibTorch's own loop") {
  const Json file = golden("optimizer_steps.json");
  for (const Json& one : file.at("cases")) {
    INFO(one.at("kind") << " " << one.at("dtype") << " " << one.at("options"));
    const std::string dtype = one.at("dtype");
    const Run ours = run(file, one, /*fused=*/true);
    CHECK(ours.fused_calls >= 2 * 220);  // two groups
    // The same kernels: bits only differ where another processor rounds otherwise.
    const double close = dtype == "float64" ? 1e-12 : dtype == "bfloat16" ? 1e-2 : 2e-6;
    CHECK(largest_difference(flat(ours.net->all), doubles(one.at("weights"))) < close);
    CHECK(largest_difference(torch::tensor(ours.sums, torch::kDouble), doubles(one.at("sums"))) < 10 * close);
    for (const auto& [name, want] : one.at("state").items()) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& weight : ours.net->all) {
        parts.push_back(state_of(one.at("kind"), *ours.optimizer, weight, name));
      }
      CHECK(flat(parts).allclose(doubles(want), close, close));
    }
    const Run own = run(file, one, /*fused=*/false);
    CHECK(own.fused_calls == 0);
    if (dtype == "bfloat16") continue;  // LibTorch's loop rounds to 8 bits after every operation
    CHECK(largest_difference(flat(ours.net->all), flat(own.net->all)) < close);
  }
}

TEST_CASE("the state is LibTorch's: saved, loaded, and carried on by the optimizer's own step") {
  const Json file = golden("optimizer_steps.json");
  for (const Json& one : file.at("cases")) {
    if (one.at("dtype") != "float32") continue;
    INFO(one.at("kind") << " " << one.at("options"));
    const std::vector<at::Tensor> start = {torch::randn({4, 3}), torch::randn({5}), torch::randn({2})};
    const auto mixed_net = std::make_shared<Weights>(start);
    const auto own_net = std::make_shared<Weights>(start);
    OptimizerPtr mixed = make_optimizer(one, mixed_net->all, 0.02);
    const OptimizerPtr own = make_optimizer(one, own_net->all, 0.02);
    for (int step = 0; step < 40; ++step) {
      for (size_t i = 0; i < start.size(); ++i) {
        if (step % 7 == 3 && i == 1) {  // counts differ between parameters
          own_net->all[i].mutable_grad().reset();
          mixed_net->all[i].mutable_grad().reset();
          continue;
        }
        const auto gradient = torch::randn_like(start[i]);
        own_net->all[i].mutable_grad() = gradient.clone();
        mixed_net->all[i].mutable_grad() = gradient.clone();
      }
      own->step();
      if (step / 5 % 2 == 0) {
        accelerate::detail::fused_step(*mixed);
      } else {
        mixed->step();
      }
      if (step % 13 == 12) {
        const OptimizerPtr fresh = make_optimizer(one, mixed_net->all, 0.02);
        copy_state(*mixed, *fresh);
        mixed = fresh;
      }
    }
    CHECK(flat(mixed_net->all).allclose(flat(own_net->all), 1e-5, 1e-6));
    if (one.at("kind") != "AdamW") continue;
    CHECK(step_count(*mixed, mixed_net->all[0]) == 40);
    CHECK(step_count(*mixed, mixed_net->all[1]) == 34);
    CHECK(step_count(*own, own_net->all[1]) == 34);
  }
}

namespace {

template <class O>
class Counted : public O {
 public:
  using O::O;
  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    ++steps;
    return O::step(std::move(closure));
  }
  int steps = 0;
};

// Ten steps with gradients from `gradient(index, weight)`, by fused_step() and by step(): the results must be
// equal. Returns how many calls of fused kernels there were.
template <class Make, class Gradient>
int64_t fused_calls_in_ten_steps(const std::vector<at::Tensor>& start, const Make& make,
                                 const Gradient& gradient) {
  const auto ours = std::make_shared<Weights>(start);
  const auto theirs = std::make_shared<Weights>(start);
  auto our_optimizer = make(ours->all);
  auto their_optimizer = make(theirs->all);
  int64_t calls = 0;
  for (int step = 0; step < 10; ++step) {
    for (size_t i = 0; i < start.size(); ++i) {
      ours->all[i].mutable_grad() = gradient(i, ours->all[i]);
      theirs->all[i].mutable_grad() = gradient(i, theirs->all[i]);
    }
    {
      const CallCounter counter("aten::_fused_");
      accelerate::detail::fused_step(our_optimizer);
      calls += counter.count();
    }
    their_optimizer.step();
    for (size_t i = 0; i < start.size(); ++i) {
      CHECK(ours->all[i].grad().defined() == gradient(i, ours->all[i]).defined());
      CHECK(ours->all[i].allclose(theirs->all[i], 1e-5, 1e-6));
    }
  }
  return calls;
}

at::Tensor half_of(size_t, const at::Tensor& weight) {
  return weight.detach() * 0.5;
}

template <class O, class Options>
auto maker(const Options& options) {
  return [=](const std::vector<at::Tensor>& weights) { return O(weights, options); };
}

}  // namespace

TEST_CASE("what the fused kernels can't do takes the optimizer's own step, parameter by parameter") {
  using namespace torch::optim;
  const std::vector<at::Tensor> start = {torch::randn({4, 3}), torch::randn({3, 3}), torch::randn({6})};
  const auto sparse_or_absent = [](size_t i, const at::Tensor& weight) -> at::Tensor {
    if (i == 0) return half_of(i, weight).to_sparse(1);
    return i == 1 ? half_of(i, weight) : at::Tensor();
  };
  CHECK(fused_calls_in_ten_steps(start, maker<SGD>(SGDOptions(0.1)), sparse_or_absent) == 10);
  CHECK(fused_calls_in_ten_steps(start, maker<Adagrad>(AdagradOptions(0.1)), sparse_or_absent) == 10);

  const auto other_strides = [](size_t i, const at::Tensor& weight) {
    return i == 1 ? half_of(i, weight).t().contiguous().t() : half_of(i, weight);
  };
  CHECK(fused_calls_in_ten_steps(start, maker<AdamW>(AdamWOptions(0.1)), other_strides) == 10);

  // Two dtypes are two calls; a layout that is not the usual one is walked as it lies in memory.
  std::vector<at::Tensor> mixed = start;
  mixed[0] = mixed[0].to(torch::kDouble);
  mixed[1] = torch::randn({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast);
  CHECK(fused_calls_in_ten_steps(mixed, maker<Adam>(AdamOptions(0.1)), half_of) == 20);
  CHECK(fused_calls_in_ten_steps(mixed, maker<AdamW>(AdamWOptions(0.1).amsgrad(true)), half_of) == 20);
  CHECK(fused_calls_in_ten_steps(mixed, maker<SGD>(SGDOptions(0.1).momentum(0.5)), half_of) == 20);
  CHECK(fused_calls_in_ten_steps(mixed, maker<Adagrad>(AdagradOptions(0.1)), half_of) == 20);

  const std::vector<at::Tensor> complex = {torch::randn({3}, torch::kComplexFloat), torch::randn({3})};
  CHECK(fused_calls_in_ten_steps(complex, maker<SGD>(SGDOptions(0.1).momentum(0.5)), half_of) == 10);
  const std::vector<at::Tensor> empty = {torch::zeros({0, 3}), torch::randn({3})};
  CHECK(fused_calls_in_ten_steps(empty, maker<AdamW>(AdamWOptions(0.1)), half_of) == 10);

  CHECK(fused_calls_in_ten_steps(start, maker<RMSprop>(RMSpropOptions(0.1)), half_of) == 0);
  CHECK(fused_calls_in_ten_steps(start, maker<Counted<AdamW>>(AdamWOptions(0.1)), half_of) == 0);

  Weights broken({torch::randn({4, 3}), torch::randn({3})});
  AdamW adam(broken.all, AdamWOptions(0.1));
  broken.all[0].mutable_grad() = torch::ones({4, 3}).to_sparse(1);
  broken.all[1].mutable_grad() = torch::ones({3});
  CHECK_THROWS_WITH(accelerate::detail::fused_step(adam), ContainsSubstring("sparse"));
  CHECK(broken.all[1].grad().defined());
}

TEST_CASE("a derived optimizer and a closure keep the user's own step") {
  Accelerator accelerator(alone());
  torch::nn::Linear net(2, 1);
  Counted<torch::optim::SGD> counted(net->parameters(), torch::optim::SGDOptions(0.1));
  torch::optim::SGD plain(net->parameters(), 0.1);
  auto [model, first, second] = accelerator.prepare(net, counted, plain);
  const CallCounter calls("aten::_fused_");
  const auto closure = [&, &model = model] {
    const auto loss = model(torch::ones({1, 2})).sum();
    accelerator.backward(loss);
    return loss;
  };
  closure();
  first.step();
  second.step(closure);
  CHECK(counted.steps == 1);
  CHECK(calls.count() == 0);
  second.step();
  CHECK(calls.count() == 1);
}
