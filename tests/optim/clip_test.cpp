// Clipping equals torch's. tests/parity/clip.json was written by clip_gen.py beside it.
#include "accelerate/optim/clip.h"

#include <limits>

#include "optim_test_support.h"

using namespace accelerate;
using namespace accelerate::test;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The parameters that clip_gen.py made.
std::vector<at::Tensor> make_parameters(const nlohmann::json& file, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(file.at("seed").get<uint64_t>());
  std::vector<at::Tensor> parameters;
  for (const auto& shape : file.at("shapes")) {
    const auto sizes = shape.is_null() ? std::vector<int64_t>{} : shape.get<std::vector<int64_t>>();
    parameters.push_back(torch::zeros(sizes, dtype).requires_grad_());
    if (!shape.is_null()) parameters.back().mutable_grad() = torch::randn(sizes, generator).to(dtype);
  }
  return parameters;
}

at::Tensor gradients(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) all.push_back(parameter.grad());
  }
  return flat(all);
}

at::Tensor parameter_with(const at::Tensor& gradient) {
  at::Tensor parameter = torch::zeros(gradient.sizes(), gradient.dtype()).requires_grad_();
  parameter.mutable_grad() = gradient.clone();
  return parameter;
}

}  // namespace

TEST_CASE("norms and clipped gradients equal torch's for every p, limit and dtype") {
  const nlohmann::json file = golden("clip.json");
  for (const auto& one : file.at("norms")) {
    INFO(one.at("dtype") << " p " << one.at("norm_type") << " max " << one.at("max_norm"));
    const double close = one.at("dtype") == "float32" ? 1e-6 : one.at("dtype") == "float64" ? 1e-14 : 1e-2;
    const auto parameters = make_parameters(file, dtype_named(one.at("dtype")));
    const double p = one.at("norm_type").is_string() ? kInfinity : one.at("norm_type").get<double>();
    const at::Tensor norm = clip_grad_norm_(parameters, one.at("max_norm"), p);
    CHECK(norm.dim() == 0);
    CHECK(norm.item<double>() == Approx(one.at("norm").get<double>()).epsilon(close));
    CHECK(gradients(parameters).allclose(doubles(one.at("gradients")), close, close));
  }
  for (const auto& one : file.at("values")) {
    const auto parameters = make_parameters(file, torch::kFloat);
    clip_grad_value_(parameters, one.at("clip_value"));
    CHECK(gradients(parameters).allclose(doubles(one.at("gradients")), 1e-6, 1e-7));
  }
}

TEST_CASE("sparse gradients count as the tensors that they stand for") {
  // Rows 1 and 3, row 1 in two parts, as an embedding that is used twice makes them.
  const auto indices = torch::tensor({{1, 3, 1}});
  const auto values = torch::tensor({{1.0F, 2.0F}, {-3.0F, 0.5F}, {4.0F, -9.0F}});
  const auto sparse = torch::sparse_coo_tensor(indices, values, {5, 2});
  for (const double p : {1.0, 2.0, kInfinity}) {
    const std::vector<at::Tensor> ours = {parameter_with(sparse), parameter_with(torch::ones({3}))};
    const std::vector<at::Tensor> dense = {parameter_with(sparse.to_dense()),
                                           parameter_with(torch::ones({3}))};
    CHECK(clip_grad_norm_(ours, 1.5, p).item<double>() ==
          Approx(clip_grad_norm_(dense, 1.5, p).item<double>()));
    CHECK(ours[0].grad().is_sparse());
    CHECK(ours[0].grad().to_dense().allclose(dense[0].grad()));
    CHECK(ours[1].grad().allclose(dense[1].grad()));
  }
  const std::vector<at::Tensor> ours = {parameter_with(sparse)};
  clip_grad_value_(ours, 4);
  CHECK(ours[0].grad().to_dense().equal(sparse.to_dense().clamp(-4, 4)));
}

TEST_CASE("no gradients at all are a norm of 0, and limits that can't be are refused") {
  const std::vector<at::Tensor> none = {torch::zeros({2}).requires_grad_()};
  CHECK(clip_grad_norm_(none, 1.0).item<double>() == 0);
  CHECK(clip_grad_norm_({}, 1.0).item<double>() == 0);
  clip_grad_value_(none, 1.0);
  CHECK_THROWS_WITH(clip_grad_norm_(none, -1.0), ContainsSubstring("max_norm: expected 0 or more, got -1"));
  CHECK_THROWS_WITH(clip_grad_norm_(none, std::nan("")), ContainsSubstring("max_norm"));
  CHECK_THROWS_WITH(clip_grad_norm_(none, 1.0, 0.0), ContainsSubstring("norm_type"));
  CHECK_THROWS_WITH(clip_grad_value_(none, -0.5), ContainsSubstring("clip_value"));
}

TEST_CASE("a norm that is not finite names the first parameter at fault and leaves the gradients alone") {
  Accelerator accelerator(alone());
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  auto model = accelerator.prepare(net);
  for (const double bad : {std::nan(""), kInfinity}) {
    for (const at::Tensor& parameter : net->parameters())
      parameter.mutable_grad() = torch::ones_like(parameter);
    CHECK(accelerator.clip_grad_norm_(model, 100.0, 2.0, /*error_if_nonfinite=*/true).item<double>() ==
          Approx(std::sqrt(13.0)));
    net->parameters()[2].grad()[0][1] = bad;
    net->parameters()[3].grad()[0] = bad;
    const at::Tensor before = gradients(net->parameters());
    CHECK_THROWS_WITH(accelerator.clip_grad_norm_(model, 1.0, 2.0, true),
                      ContainsSubstring("the first parameter at fault is '1.weight'"));
    CHECK(gradients(net->parameters()).allclose(before, 0, 0, /*equal_nan=*/true));
    CHECK_FALSE(std::isfinite(accelerator.clip_grad_norm_(model, 1.0).item<double>()));  // torch's default
  }
  // Each norm is finite, their total is not.
  std::vector<at::Tensor> large = {parameter_with(torch::full({1}, 3e38F)),
                                   parameter_with(torch::full({1}, 3e38F))};
  CHECK(first_nonfinite_gradient(large, 1.0) == 1);
  CHECK(first_nonfinite_gradient(large, kInfinity) == std::nullopt);
}
