#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Takes apart the output of a starter that begins each piece of a rank's output with "[1,RANK]<stdout>:"
/// (Open MPI's --tag-output; 1 is the job's number, and <stderr> and <stddiag> are the other streams). A
/// piece ends where the next tag begins, or with its line.
class TaggedOutput {
 public:
  /// `sink` gets a piece and its rank, or no rank for what the starter says itself.
  using Sink = std::function<void(std::optional<int> rank, std::string_view text)>;

  explicit TaggedOutput(Sink sink) : sink_(std::move(sink)) {}

  void feed(std::string_view bytes);
  /// Nothing more comes.
  void finish();

 private:
  void pass(std::string_view text);

  Sink sink_;
  std::optional<int> rank_;
  std::string held_;  ///< what may be the beginning of a tag
};

/// The rank that mpirun's last words name as the one that failed, if they do: "Process name: [[21346,1],1]"
/// or "process rank 1 with PID 7".
std::optional<int> rank_named_by_mpirun(std::string_view text);

}  // namespace accelerate::detail
