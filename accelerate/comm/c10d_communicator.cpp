#include "accelerate/comm/c10d_communicator.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <cstring>
#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "accelerate/comm/peer_report.h"
#include "accelerate/comm/shm/group.h"
#include "accelerate/comm/single_communicator.h"
#include "accelerate/comm/staged_backend.h"
#include "accelerate/comm/watchdog.h"
#include "accelerate/comm/watched_backend.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

c10d::ReduceOp::RedOpType c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kSum:
    case ReduceOp::kMean:  // summed, then divided: not every back end has an average
      return c10d::ReduceOp::SUM;
  }
  throw ConfigError({.what = "unknown reduce operation"});
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream out;
  out << c10::toString(tensor.scalar_type()) << ' ' << tensor.sizes();
  return out.str();
}

class C10dCommunicator final : public Communicator {
 public:
  C10dCommunicator(Store store, c10::intrusive_ptr<c10d::ProcessGroup> group, std::string backend_name,
                   BucketMemorySource* memory, std::shared_ptr<OperationLog> log,
                   const CommunicatorOptions& options, Logger& logger)
      : store_(std::move(store)),
        group_(std::move(group)),
        backend_name_(std::move(backend_name)),
        memory_(memory),
        device_(options.device),
        timeout_(options.timeout),
        debug_(options.debug),
        log_(std::move(log)),
        watchdog_(
            store_.share(), log_, watchdog_options(options),
            [&logger](LogLevel level, const std::string& line) { logger.log(level, line, LogRanks::kAll); }) {
  }

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }
  std::string backend_name() const override { return backend_name_; }

  void all_reduce(at::Tensor& tensor, ReduceOp op) override {
    check_reduce(tensor, op, rank());
    std::vector<at::Tensor> tensors = {tensor.is_contiguous() ? tensor : tensor.contiguous()};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    run("all_reduce", tensor, [&] { return group_->allreduce(tensors, options); });
    if (op == ReduceOp::kMean) tensors[0].div_(size());
    if (!tensor.is_contiguous()) tensor.copy_(tensors[0]);
  }

  void broadcast(at::Tensor& tensor, int root) override {
    if (root < 0 || root >= size()) {
      throw ConfigError({.what = "broadcast root",
                         .expected = concat("a rank from 0 to ", size() - 1),
                         .got = std::to_string(root),
                         .rank = rank()});
    }
    std::vector<at::Tensor> tensors = {tensor.is_contiguous() ? tensor : tensor.contiguous()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    run("broadcast", tensor, [&] { return group_->broadcast(tensors, options); });
    if (!tensor.is_contiguous()) tensor.copy_(tensors[0]);
  }

  at::Tensor all_gather(const at::Tensor& tensor) override {
    const at::Tensor input = tensor.dim() == 0 ? tensor.reshape({1}) : tensor.contiguous();
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int i = 0; i < size(); ++i) outputs[0].push_back(at::empty_like(input));
    std::vector<at::Tensor> inputs = {input};
    run("all_gather", tensor, [&] { return group_->allgather(outputs, inputs); });
    return at::cat(outputs[0], 0);
  }

  at::Tensor reduce_scatter(const at::Tensor& tensor, ReduceOp op) override {
    check_reduce(tensor, op, rank());
    if (tensor.dim() == 0 || tensor.size(0) % size() != 0) {
      throw ConfigError({.what = "reduce_scatter",
                         .expected = concat("a first dimension that is a multiple of ", size(), " ranks"),
                         .got = describe(tensor),
                         .hint = "Pad the tensor first.",
                         .rank = rank()});
    }
    // Gloo has no reduce-scatter of its own for all dtypes and world sizes; the sum is taken whole, and each
    // rank keeps its part. NCCL runs the real one.
    if (backend_name_ == "gloo") {
      at::Tensor whole = tensor.clone(at::MemoryFormat::Contiguous);
      all_reduce(whole, op);
      return whole.chunk(size(), 0)[static_cast<size_t>(rank())].clone();
    }
    at::Tensor input = tensor.contiguous();
    at::Tensor output = at::empty_like(input.narrow(0, 0, input.size(0) / size()));
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d_op(op);
    run("reduce_scatter", tensor, [&] { return group_->_reduce_scatter_base(output, input, options); });
    if (op == ReduceOp::kMean) output.div_(size());
    return output;
  }

  void scatter(at::Tensor& output, const std::vector<at::Tensor>& inputs, int root) override {
    const bool fits = std::all_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
      return input.sizes() == output.sizes() && input.scalar_type() == output.scalar_type();
    });
    const size_t wanted = rank() == root ? static_cast<size_t>(size()) : 0;
    if (root < 0 || root >= size() || inputs.size() != wanted || !fits || !output.is_contiguous()) {
      throw ConfigError({.what = concat("scatter from rank ", root),
                         .expected = concat(wanted, " inputs like the contiguous output, ", describe(output)),
                         .got = concat(inputs.size(), fits ? " inputs" : " inputs of other shapes or dtypes"),
                         .rank = rank()});
    }
    std::vector<at::Tensor> outputs = {output};
    std::vector<std::vector<at::Tensor>> all;
    if (rank() == root) all.push_back(inputs);
    c10d::ScatterOptions options;
    options.rootRank = root;
    run("scatter", output, [&] { return group_->scatter(outputs, all, options); });
  }

  void send(const at::Tensor& tensor, int destination, int tag) override {
    check_peer("send to", destination, tag);
    message("send to", tensor, destination, [&] {
      std::vector<at::Tensor> tensors = {tensor.contiguous()};
      if (unchecked_sizes()) {
        std::vector<at::Tensor> announced = {announcement(tensor)};
        group_->send(announced, destination, tag)->wait();
      }
      group_->send(tensors, destination, tag)->wait();
    });
  }

  void receive(at::Tensor& tensor, int source, int tag) override {
    check_peer("receive from", source, tag);
    message("receive from", tensor, source, [&] {
      std::vector<at::Tensor> tensors = {tensor.contiguous()};
      if (unchecked_sizes()) {
        std::vector<at::Tensor> announced = {at::empty({2}, at::kLong)};
        group_->recv(announced, source, tag)->wait();
        if (!announced[0].equal(announcement(tensor))) {
          // The message is taken all the same, so that the next one finds its own.
          const auto dtype = static_cast<at::ScalarType>(announced[0][0].item<int64_t>());
          tensors[0] = at::empty({announced[0][1].item<int64_t>()}, tensor.options().dtype(dtype));
          group_->recv(tensors, source, tag)->wait();
          refuse_message(tensor, source, announced[0]);
        }
      }
      group_->recv(tensors, source, tag)->wait();
      if (!tensor.is_contiguous()) tensor.copy_(tensors[0]);
    });
  }

  void barrier() override {
    // Not ProcessGroup::barrier(), which keeps a static tensor that threads as ranks would race for.
    c10d::BarrierOptions options;
    if (device_.is_cuda()) options.device_ids = {device_.index()};
    run("barrier", at::Tensor(), [&] { return group_->getDefaultBackend()->barrier(options); });
  }

  void check_point(const std::string& what) override {
    log_->count_backward_pass();
    if (debug_) run(what.c_str(), at::Tensor(), [] { return c10::intrusive_ptr<c10d::Work>(); });
  }

  Store* store() override { return &store_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override { return group_; }

  [[noreturn]] void rethrow(const std::string& operation) override {
    try {
      throw;
    } catch (const shm::PeerError& error) {
      fail(with_last(operation), error.text().what.c_str());
    } catch (const shm::Disagreement&) {
      if (backend_name_ == "shm") check_agreement(with_last(operation));
      throw;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      if (!looks_like_peer_failure(error.what())) throw;
      fail(with_last(operation), error.what());
    }
  }

  std::unique_ptr<BucketMemory> bucket_memory(size_t bytes) override {
    if (memory_ == nullptr) return nullptr;
    try {
      return memory_->make_bucket_memory(bytes);
    } catch (const shm::PeerError& error) {
      fail("making room for gradients", error.text().what.c_str());
    }
  }

 private:
  WatchdogOptions watchdog_options(const CommunicatorOptions& options) const {
    using std::chrono::milliseconds;
    constexpr milliseconds kNever = std::chrono::hours(24 * 365);
    const milliseconds notice = std::min(options.watchdog_notice, kNever);
    const milliseconds soonest = notice.count() > 0 ? std::min(options.timeout, notice) : options.timeout;
    const milliseconds interval = std::clamp(soonest / 20, milliseconds(10), milliseconds(1000));
    return {.rank = rank(),
            .size = size(),
            .backend_name = backend_name_,
            .notice = notice,
            .interval = interval};
  }

  // Which of an engine's collectives it was: the one under way, or the one that ended with the error.
  std::string with_last(const std::string& operation) {
    const OperationLog::State state = log_->state();
    const std::string& last = state.current_id > 0 ? state.current : state.last;
    return last.empty() ? operation : concat(operation, ", at ", last);
  }

  template <class Start>
  void run(const char* name, const at::Tensor& tensor, const Start& start) {
    const OperationLog::Scope scope(*log_, name, tensor);
    at::RecordFunction range(at::RecordScope::USER_SCOPE);  // the wait is within it, in profiles
    if (range.isActive()) range.before(concat("accelerate::", name));
    guarded(scope, [&] {
      if (debug_) check_agreement(scope.text());
      // A check point has nothing to wait for.
      if (const auto work = start()) work->wait();
    });
  }

  template <class F>
  void message(const char* name, const at::Tensor& tensor, int peer, const F& action) {
    const OperationLog::Scope scope(*log_, name, tensor, peer);
    guarded(scope, action);
  }

  // Gloo ends the process when a message is of another size than expected, so that sizes go ahead of it.
  bool unchecked_sizes() const { return backend_name_ == "gloo" || backend_name_ == "hierarchical"; }

  static at::Tensor announcement(const at::Tensor& tensor) {
    at::Tensor out = at::empty({2}, at::kLong);
    out[0] = static_cast<int64_t>(tensor.scalar_type());
    out[1] = tensor.numel();
    return out;
  }

  [[noreturn]] void refuse_message(const at::Tensor& tensor, int source, const at::Tensor& announced) const {
    throw CommError({.what = concat("a message from rank ", source),
                     .expected = describe(tensor),
                     .got = concat(announced[1].item<int64_t>(), " elements of ",
                                   c10::toString(static_cast<at::ScalarType>(announced[0].item<int64_t>()))),
                     .hint = "Sender and receiver must give tensors of one shape and dtype.",
                     .rank = rank()});
  }

  template <class F>
  void guarded(const OperationLog::Scope& scope, const F& action) {
    try {
      action();
    } catch (const shm::PeerError& error) {
      fail(scope.text(), error.text().what.c_str());
    } catch (const shm::Disagreement&) {
      // Every rank is here. Shapes and numbers say more than counts of bytes.
      if (backend_name_ == "shm") check_agreement(scope.text());
      throw;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail(scope.text(), error.what());
    }
  }

  void check_peer(const char* what, int peer, int tag) const {
    if (peer < 0 || peer >= size() || peer == rank() || tag < 0) {
      throw ConfigError(
          {.what = concat(what, " rank ", peer, " with tag ", tag),
           .expected = concat("another rank from 0 to ", size() - 1, ", and a tag of 0 or more"),
           .rank = rank()});
    }
  }

  // Every rank says in a fixed number of bytes what it is about to do.
  void check_agreement(const std::string& text) {
    constexpr int64_t kBytes = 256;
    at::Tensor mine = at::zeros({kBytes}, at::kByte);
    std::memcpy(mine.data_ptr(), text.data(), std::min<size_t>(text.size(), kBytes));
    std::vector<std::vector<at::Tensor>> all(1);
    for (int i = 0; i < size(); ++i) all[0].push_back(at::empty_like(mine));
    std::vector<at::Tensor> input = {mine};
    group_->allgather(all, input)->wait();
    bool equal = true;
    std::string list;
    for (int peer = 0; peer < size(); ++peer) {
      const at::Tensor& bytes = all[0][static_cast<size_t>(peer)];
      equal = equal && bytes.equal(all[0][0]);
      const auto* data = static_cast<const char*>(bytes.const_data_ptr());
      list += concat(peer > 0 ? "; " : "", "rank ", peer, ": ", std::string(data, ::strnlen(data, kBytes)));
    }
    if (equal) return;
    throw Error(
        {.what = concat("the ranks are about to run different collectives: ", list),
         .hint = "All ranks must call the same collectives in the same order, with equal shapes and dtypes.",
         .rank = rank()});
  }

  [[noreturn]] void fail(const std::string& operation, const char* cause) {
    const std::string peers = watchdog_.report_failure(operation);
    // The first line holds what matters; torch adds a stack trace below it.
    const std::string first_line(cause, std::char_traits<char>::length(cause));
    throw CommError({.what = concat(operation, " failed on ", backend_name_, ": ", peers, " (",
                                    first_line.substr(0, first_line.find('\n')), ")"),
                     .hint = "If a rank printed an error of its own, that is the cause.",
                     .rank = rank()});
  }

  Store store_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::string backend_name_;
  BucketMemorySource* memory_;  // the group's back end, if it is one
  at::Device device_;
  std::chrono::milliseconds timeout_;
  bool debug_;
  std::shared_ptr<OperationLog> log_;
  Watchdog watchdog_;  // after what it reads
};

// Waits until all ranks are here, telling from time to time who is not.
void wait_for_ranks(Store& store, const BackendRequest& request, const CommunicatorOptions& options,
                    Logger& logger) {
  const auto key = [](int rank) { return concat("accelerate/arrived/", rank); };
  store.set(key(request.rank), "1");
  if (store.add("accelerate/arrivals", 1) == request.size) store.set("accelerate/all_arrived", "1");
  const Deadline deadline = Deadline::after(options.timeout);
  while (!store.get("accelerate/all_arrived", std::min(deadline.remaining(), options.progress_interval))) {
    std::vector<int> missing;
    for (int rank = 0; rank < request.size; ++rank) {
      if (!store.has(key(rank))) missing.push_back(rank);
    }
    if (missing.empty()) continue;
    const std::string state = concat(request.size - static_cast<int>(missing.size()), " of ", request.size,
                                     " ranks have arrived; waiting for ", format_ranks(missing));
    if (deadline.expired()) {
      throw CommError(
          {.what = concat("the ranks did not meet within ", options.timeout.count() / 1000, " s: ", state),
           .hint = "Check that every rank was started, that all see the same MASTER_ADDR and "
                   "MASTER_PORT, and that no firewall is between them.",
           .rank = request.rank});
    }
    logger.info(state);
  }
}

std::string missing_hint(const std::string& name) {
  if (name == "nccl") return "NCCL needs the CUDA variant: configure with -DACCELERATE_CUDA=ON.";
  if (name != "mpi") return {};
  return "MPI needs a build with Open MPI: apt-get install libopenmpi-dev openmpi-bin, and configure with "
         "-DACCELERATE_MPI=ON.";
}

std::string choose_backend(const CommunicatorOptions& options, const BackendRequest& request) {
  std::string name = options.backend;
  const int rank = request.rank;
  if (name == "auto") {
    const bool nccl = options.device.is_cuda() && find_backend("nccl") != nullptr;
    if (nccl) {
      name = "nccl";
    } else if (options.device.is_cuda()) {
      name = "gloo";
    } else {
      name = request.one_machine ? "shm" : "hierarchical";
    }
  }
  if (name == "shm" && !request.one_machine) {
    throw ConfigError({.what = "communication back end 'shm'",
                       .expected = "all ranks on one machine",
                       .hint = "Take 'gloo', or 'auto'.",
                       .rank = rank});
  }
  if (find_backend(name) == nullptr) {
    std::vector<std::string> names;
    for (const BackendInfo& info : backends()) names.push_back(info.name);
    throw ConfigError({.what = "communication back end",
                       .expected = concat("one of ", join(names, ", "), " (what this build has)"),
                       .got = concat("'", name, "'"),
                       .hint = missing_hint(name),
                       .rank = rank});
  }
  return name;
}

}  // namespace

std::shared_ptr<Communicator> make_c10d_communicator(Store store, const BackendRequest& request,
                                                     const CommunicatorOptions& options, Logger& logger) {
  std::string name = choose_backend(options, request);
  wait_for_ranks(store, request, options, logger);
  using BackendType = c10d::ProcessGroup::BackendType;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(request.store, request.rank, request.size);
  BucketMemorySource* memory = nullptr;
  const auto log = std::make_shared<OperationLog>();
  c10::intrusive_ptr<c10d::Backend> for_cpu;
  const auto attach = [&](const std::string& backend_name, BackendType type) {
    BackendRequest with_prefix = request;
    with_prefix.nccl = options.nccl;
    with_prefix.store = c10::make_intrusive<c10d::PrefixStore>(backend_name, request.store);
    with_prefix.cuda = options.device.is_cuda();
    const BackendInfo* info = find_backend(backend_name);
    const auto backend = info->make(with_prefix);
    group->setBackend(info->device_type, type, watch_operations(backend, log));
    group->setDefaultBackend(type);
    memory = dynamic_cast<BucketMemorySource*>(backend.get());
    if (info->device_type == at::kCPU) for_cpu = backend;
  };
  try {
    // CPU tensors (counters, flags) always travel by shm, mpi or gloo, CUDA tensors by nccl or mpi.
    if (name == "shm" || name == "hierarchical") {
      try {
        attach(name, BackendType::CUSTOM);
      } catch (const BackendUnavailable& error) {
        if (options.backend != "auto") throw;
        const std::string text =
            concat(error.text().what, ", so that they talk over gloo alone: ", error.text().got);
        name == "shm" ? logger.warning(text) : logger.info(text);
        name = "gloo";
      }
    }
    if (name == "gloo" || name == "nccl") attach("gloo", BackendType::GLOO);
    if (name == "mpi") {
      attach("mpi", BackendType::MPI);
      if (options.device.is_cuda()) {
        group->setBackend(c10::DeviceType::CUDA, BackendType::MPI, watch_operations(for_cpu, log));
      }
    }
    if (name == "nccl") attach("nccl", BackendType::NCCL);
    const bool direct = name == "nccl" || (name == "mpi" && options.device.is_cuda());
    if (!direct && !options.device.is_cpu()) {
      // The type only has to be another one than that of the back end for the CPU.
      group->setBackend(options.device.type(), BackendType::XCCL,
                        watch_operations(stage_through_cpu(for_cpu), log));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw CommError({.what = concat("the ", name, " group of ", request.size, " ranks could not be built: ",
                                    report_failure(store, request.rank, request.size, "starting " + name,
                                                   std::chrono::milliseconds(300)),
                                    " (", error.what(), ")"),
                     .rank = request.rank});
  }
  group->setGroupName("accelerate");
  return std::make_shared<C10dCommunicator>(std::move(store), std::move(group), name, memory, log, options,
                                            logger);
}

}  // namespace accelerate::detail
