#include "accelerate/launch/run_support.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "accelerate/core/shared_memory_names.h"
#include "accelerate/core/strings.h"
#include "accelerate/environment/variables.h"

namespace accelerate::detail {

IgnoreSigpipe::IgnoreSigpipe() {
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &before_);
}

IgnoreSigpipe::~IgnoreSigpipe() {
  ::sigaction(SIGPIPE, &before_, nullptr);
}

SharedMemorySweep::SharedMemorySweep(const std::string& job_id) : prefix_(shared_memory_prefix(job_id)) {}

void SharedMemorySweep::sweep() const {
  remove_shared_memory(prefix_.c_str());
}

void kill_processes_of_job(const std::string& job_id) {
  const std::string entry = concat('\0', variables::kMpirunJob, "=", job_id, '\0');
  std::error_code error;
  for (const auto& item : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = parse_int(item.path().filename().string());
    if (!pid || *pid == ::getpid()) continue;
    std::ifstream file(item.path() / "environ", std::ios::binary);
    const std::string environment = '\0' + std::string(std::istreambuf_iterator<char>(file), {});
    if (environment.find(entry) != std::string::npos) ::kill(static_cast<pid_t>(*pid), SIGKILL);
  }
}

std::vector<int> signals_to_handle() {
  std::vector<int> out = {SIGINT, SIGTERM, SIGQUIT};
  // nohup asks for SIGHUP to be ignored. SIGINT is taken even so: a shell ignores it for every background
  // job.
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler != SIG_IGN) out.push_back(SIGHUP);
  return out;
}

void raise_descriptor_limit(int num_processes) {
  rlimit limit{};
  // Of each rank a pidfd, two pipes and a log file.
  const rlim_t needed = 4 * static_cast<rlim_t>(num_processes) + 64;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min(limit.rlim_max, needed);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace accelerate::detail
