#include <unistd.h>

#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/known_environments.h"
#include "accelerate/environment/reading.h"
#include "accelerate/environment/variables.h"

namespace accelerate::detail {
namespace {

// Started by hand, alone.
class PlainEnvironment final : public Environment {
 public:
  std::string_view name() const override { return "plain"; }
  bool detected(const EnvVars&) const override { return true; }
  Topology read(const EnvVars& variables) const override {
    if (const auto size = variables.get_int(variables::kWorldSize); size && *size > 1) {
      throw ConfigError(
          {.what = concat(variables::kWorldSize, "=", *size, " is set, and ", variables::kRank, " is not"),
           .hint = concat("Set ", variables::kRank,
                          ", or start the program with: accel launch "
                          "--num_processes ",
                          *size, " ./program")});
    }
    Topology out;
    out.job_id = concat("plain-", ::getpid(), "-", random_id());
    return out;
  }
};

}  // namespace

std::unique_ptr<Environment> make_plain_environment() {
  return std::make_unique<PlainEnvironment>();
}

}  // namespace accelerate::detail
