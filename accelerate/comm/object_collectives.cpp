#include "accelerate/comm/object_collectives.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "accelerate/comm/bytes_tensor.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

std::vector<int64_t> all_gather_numbers(Communicator& communicator, int64_t own) {
  at::Tensor all = communicator.all_gather(at::full({1}, own, at::TensorOptions(at::kLong)));
  const int64_t* numbers = all.const_data_ptr<int64_t>();
  return {numbers, numbers + all.numel()};
}

std::string list_of(const std::vector<int64_t>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size(); ++i) out += concat(i > 0 ? ", " : "", numbers[i]);
  return out;
}

// The ranks' shapes, [ranks, dims].
at::Tensor all_shapes(Communicator& communicator, const at::Tensor& tensor) {
  const std::vector<int64_t> dims = all_gather_numbers(communicator, tensor.dim());
  if (std::adjacent_find(dims.begin(), dims.end(), std::not_equal_to<>()) != dims.end()) {
    throw CommError({.what = "pad_across_processes",
                     .expected = "tensors with the same number of dimensions on all ranks",
                     .got = concat(list_of(dims), " on ranks 0 to ", communicator.size() - 1),
                     .rank = communicator.rank()});
  }
  const at::Tensor own = at::tensor(tensor.sizes(), at::TensorOptions(at::kLong)).reshape({1, tensor.dim()});
  return communicator.all_gather(own);
}

void check_other_dimensions(Communicator& communicator, const at::Tensor& shapes, int64_t dim) {
  at::Tensor others = shapes.clone();
  others.select(1, dim).zero_();
  if (others.equal(others.narrow(0, 0, 1).expand_as(others))) return;
  std::string list;
  for (int64_t rank = 0; rank < shapes.size(0); ++rank) {
    const at::Tensor row = shapes[rank].contiguous();
    const int64_t* sizes = row.const_data_ptr<int64_t>();
    list += concat(rank > 0 ? "; " : "", "rank ", rank, ": [", list_of({sizes, sizes + row.numel()}), "]");
  }
  throw CommError({.what = concat("pad_across_processes along dimension ", dim),
                   .expected = "equal sizes in all other dimensions",
                   .got = list,
                   .hint = "Pad those first, one call a dimension.",
                   .rank = communicator.rank()});
}

}  // namespace

std::vector<std::string> all_gather_bytes(Communicator& communicator, const std::string& own) {
  const std::vector<int64_t> sizes = all_gather_numbers(communicator, static_cast<int64_t>(own.size()));
  const int64_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> out(sizes.size());
  if (longest == 0) return out;
  const at::Tensor all = communicator.all_gather(detail::bytes_tensor(own, longest));
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    out[rank] = detail::text_of_bytes(all.narrow(0, static_cast<int64_t>(rank) * longest, sizes[rank]));
  }
  return out;
}

std::string broadcast_bytes(Communicator& communicator, const std::string& own, int root) {
  at::Tensor size = at::full({1}, static_cast<int64_t>(own.size()), at::TensorOptions(at::kLong));
  communicator.broadcast(size, root);
  const auto count = size.item<int64_t>();
  if (count == 0) return {};
  at::Tensor bytes = communicator.rank() == root ? detail::bytes_tensor(own, count)
                                                 : at::empty({count}, at::TensorOptions(at::kByte));
  communicator.broadcast(bytes, root);
  return detail::text_of_bytes(bytes);
}

at::Tensor pad_across_processes(Communicator& communicator, const at::Tensor& tensor,
                                const PadOptions& options) {
  if (options.dim >= tensor.dim() || options.dim < -tensor.dim()) return tensor;
  const int64_t dim = options.dim < 0 ? options.dim + tensor.dim() : options.dim;
  const at::Tensor shapes = all_shapes(communicator, tensor);
  check_other_dimensions(communicator, shapes, dim);
  const auto longest = shapes.select(1, dim).max().item<int64_t>();
  const int64_t own = tensor.size(dim);
  if (own == longest) return tensor;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[static_cast<size_t>(dim)] = longest;
  at::Tensor out = at::full(sizes, options.pad_index, tensor.options());
  out.narrow(dim, options.pad_first ? longest - own : 0, own).copy_(tensor);
  return out;
}

at::Tensor gather_rows(Communicator& communicator, const at::Tensor& rows) {
  const std::vector<int64_t> counts = all_gather_numbers(communicator, rows.size(0));
  const at::Tensor padded = communicator.all_gather(pad_across_processes(communicator, rows, {}));
  const int64_t longest = *std::max_element(counts.begin(), counts.end());
  std::vector<at::Tensor> parts;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back(padded.narrow(0, static_cast<int64_t>(rank) * longest, counts[rank]));
  }
  return at::cat(parts, 0);
}

}  // namespace accelerate
