#include "accelerate/comm/tensor_structure.h"

#include "test_support.h"

using namespace accelerate;

namespace {

struct Sample {
  at::Tensor image, label;
  int64_t id = 0;
  template <class F>
  void for_each_tensor(F&& fn) {
    fn(image);
    fn(label);
  }
};

struct Foreign {
  at::Tensor inside;
};

}  // namespace

template <>
struct accelerate::TensorStructure<Foreign> {
  template <class F>
  static void for_each(Foreign& value, F&& fn) {
    fn(value.inside);
  }
};

TEST_CASE("for_each_tensor reaches every tensor of a nested structure, in a fixed order") {
  const auto one = [](int value) { return torch::full({1}, value); };
  using Nested =
      std::tuple<at::Tensor, std::vector<Sample>, std::map<std::string, std::optional<at::Tensor>>, Foreign,
                 torch::data::Example<>, std::unordered_map<std::string, at::Tensor>, int, std::string>;
  Nested value{one(0),
               {{one(1), one(2), 7}},
               {{"a", one(3)}, {"b", std::nullopt}},
               Foreign{one(4)},
               torch::data::Example<>(one(5), one(6)),
               {{"z", one(8)}, {"y", one(7)}},
               3,
               "text"};
  std::vector<int64_t> seen;
  for_each_tensor(value, [&](at::Tensor& tensor) { seen.push_back(tensor.item<int64_t>()); });
  CHECK(seen == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8});
  const Nested doubled = map_tensors(value, [](const at::Tensor& tensor) { return tensor * 2; });
  CHECK(std::get<1>(doubled)[0].label.item<int64_t>() == 4);
  CHECK(std::get<1>(doubled)[0].id == 7);
  CHECK(std::get<0>(value).item<int64_t>() == 0);
  CHECK(collect_tensors(value).size() == 9);
}
