#pragma once

#include <string>

#include "accelerate/comm/store.h"
#include "accelerate/core/deadline.h"
#include "accelerate/core/error.h"

namespace accelerate::detail {

/// Collective over the store, once for each `topic`. Every rank says what is wrong on its side, or nothing;
/// all get the same answer: the problem of the lowest rank that has one, with its rank, or "".
/// @throws CommError naming the rank that did not come before the deadline.
std::string first_problem(Store& store, int rank, int size, const std::string& topic,
                          const std::string& problem, const Deadline& deadline);

/// An error's text in one line.
std::string one_line(const Error& error);

}  // namespace accelerate::detail
