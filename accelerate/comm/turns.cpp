#include "accelerate/comm/turns.h"

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"

namespace accelerate {

void first_then_others(const ProcessContext& context, First first, const std::function<void()>& body,
                       std::chrono::milliseconds progress) {
  const Topology& topology = context.topology;
  const bool local = first == First::kLocalMain;
  if ((local ? topology.local_world_size : topology.world_size) == 1) {
    body();
    return;
  }
  Store& store = *context.communicator->store();
  const int64_t number = (*context.next_turn)++;
  const std::string key = local ? concat("accelerate/turn/", number, "/machine/", topology.node_rank)
                                : concat("accelerate/turn/", number);
  if ((local ? topology.local_rank : topology.rank) == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      store.set(key, concat("!", error_message(error)));
      throw;
    }
    store.set(key, "done");
    return;
  }
  std::optional<std::string> result;
  for (std::chrono::milliseconds waited{}; !(result = store.get(key, progress)); waited += progress) {
    context.logger->info(
        concat("rank ", topology.rank, " has waited ", (waited + progress).count() / 1000, " s for the ",
               local ? "first rank of its machine" : "main process", ", which goes first"),
        LogRanks::kAll);
  }
  if (result->starts_with('!')) {
    throw Error({.what = concat("the process that went first failed: ", result->substr(1)),
                 .rank = topology.rank,
                 .echo = true});
  }
  body();
}

}  // namespace accelerate
