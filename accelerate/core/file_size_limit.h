#pragma once

#include <signal.h>

namespace accelerate {

/// While it lives, a write of this thread beyond the limit on file sizes (ulimit -f) fails with EFBIG, as an
/// error that can be told, instead of ending the process with SIGXFSZ.
class FileSizeLimitAsError {
 public:
  FileSizeLimitAsError();
  ~FileSizeLimitAsError();
  FileSizeLimitAsError(const FileSizeLimitAsError&) = delete;
  FileSizeLimitAsError& operator=(const FileSizeLimitAsError&) = delete;

 private:
  sigset_t signal_;
  sigset_t before_;
};

}  // namespace accelerate
