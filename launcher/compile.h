#pragma once

#include <stdexcept>
#include <string>

#include "accelerate/core/unique_fd.h"
#include "accelerate/environment/env_vars.h"

namespace accelerate::cli {

/// True for the name of a C++ source: .cpp, .cc or .cxx.
bool is_source_file(const std::string& name);

/// @throws LaunchError when the source is not there or no regular file.
void check_source(const std::string& source);

/// A program in the cache. While this object lives, nobody removes it from there.
struct CachedProgram {
  std::string path;
  UniqueFd in_use;
};

/// A signal came while a program was compiled.
class CompileInterrupted : public std::runtime_error {
 public:
  CompileInterrupted(int signal_number, const std::string& source);
  int signal() const { return signal_; }

 private:
  int signal_;
};

/// Compiles a program of one source file against the library that this `accel` belongs to, or takes it from
/// the cache, $XDG_CACHE_HOME/accelerate/programs (~/.cache/...). It is compiled anew when the source, a
/// header of the user's own, an object or archive that the flags name, the compiler, the flags or the library
/// have changed. The compiler is $CXX, else
/// the one that the library was built with, else c++, g++ or clang++ in PATH; $CXXFLAGS, $LDFLAGS and
/// `cxxflags` are added in this order. Says "compiled in N s" on standard error unless `quiet`; the
/// compiler's own messages go there too. Several at once do not disturb each other.
/// The cache holds 32 programs and 1 GiB at most; those that were started longest ago go first, except where
/// they are in use.
/// @throws ConfigError when there is no compiler or it reports errors, LaunchError when there is no source,
/// CompileInterrupted after one of SIGINT, SIGTERM, SIGHUP and SIGQUIT; nothing of the compiler is left then.
CachedProgram compile_program(const std::string& source, const std::string& cxxflags,
                              const EnvVars& variables, bool quiet);

}  // namespace accelerate::cli
