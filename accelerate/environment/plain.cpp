#include <unistd.h>

#include "accelerate/core/strings.h"
#include "accelerate/environment/known_environments.h"
#include "accelerate/environment/reading.h"

namespace accelerate::detail {
namespace {

// Started by hand, alone.
class PlainEnvironment final : public Environment {
 public:
  std::string_view name() const override { return "plain"; }
  bool detected(const EnvVars&) const override { return true; }
  Topology read(const EnvVars&) const override {
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
