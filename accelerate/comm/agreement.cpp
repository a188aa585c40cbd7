#include "accelerate/comm/agreement.h"

#include "accelerate/core/strings.h"

namespace accelerate::detail {
namespace {

std::string wait_for(Store& store, const std::string& key, int writer, int rank, const Deadline& deadline) {
  const auto value = store.get(key, deadline.remaining());
  if (!value) {
    throw CommError(
        {.what = concat("rank ", writer, " did not say within ",
                        static_cast<double>(deadline.duration().count()) / 1000.0, " s how it starts"),
         .rank = rank});
  }
  return value->substr(1);  // a store takes no empty values
}

}  // namespace

std::string first_problem(Store& store, int rank, int size, const std::string& topic,
                          const std::string& problem, const Deadline& deadline) {
  const auto key = [&](int of) { return concat(topic, "/", of); };
  const std::string verdict_key = topic + "/verdict";
  if (rank > 0) {
    store.set(key(rank), "=" + problem);
    return wait_for(store, verdict_key, 0, rank, deadline);
  }
  std::string verdict = problem.empty() ? "" : concat("rank 0: ", problem);
  for (int other = 1; other < size; ++other) {
    const std::string theirs = wait_for(store, key(other), other, rank, deadline);
    if (verdict.empty() && !theirs.empty()) verdict = concat("rank ", other, ": ", theirs);
  }
  store.set(verdict_key, "=" + verdict);
  return verdict;
}

std::string one_line(const Error& error) {
  const auto& text = error.text();
  return text.got.empty() ? text.what : concat(text.what, " (", text.got, ")");
}

}  // namespace accelerate::detail
