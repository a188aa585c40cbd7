#include "accelerate/core/file_size_limit.h"

#include <cerrno>
#include <ctime>

namespace accelerate {

FileSizeLimitAsError::FileSizeLimitAsError() {
  sigemptyset(&signal_);
  sigaddset(&signal_, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
}

FileSizeLimitAsError::~FileSizeLimitAsError() {
  const int saved = errno;
  // The kernel sends it to the writing thread; one that waits there must not arrive once it is let through.
  if (sigismember(&before_, SIGXFSZ) == 0) {
    const timespec now{};
    while (::sigtimedwait(&signal_, nullptr, &now) > 0) {
    }
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = saved;
}

}  // namespace accelerate
