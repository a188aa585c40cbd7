#include "launcher/compile.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>

#include "accelerate/core/child_process.h"
#include "accelerate/core/error.h"
#include "accelerate/core/strings.h"
#include "accelerate/launch/run_support.h"
#include "accelerate/launch/signal_pipe.h"
#include "launcher/build_flags.h"
#include "launcher/program.h"

// How the cache works. The name of a program in it holds two hashes. The first is of what is known before
// compiling: path and text of the source, the command line, and the size and time of compiler, library and
// the files that the user's flags name. Under it, a list names the headers that the compiler read the last
// time, system headers and the library's own left out. The second hash is of those headers' texts. A program
// is usable if it is there under both hashes as they are now; nothing in the cache is ever changed, only
// added by a rename. The time of last change of a program is that of its last start, and its launcher holds a
// shared lock on it; a program is removed only under an exclusive one, and a launcher that has got its lock
// looks whether the program is still there.

namespace accelerate::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostPrograms = 32;
constexpr uintmax_t kMostBytes = uintmax_t{1} << 30;
constexpr std::chrono::milliseconds kLookInterval{1000};
constexpr std::chrono::milliseconds kCompilerGrace{2000};
constexpr const char* kListExtension = ".headers";
// Where the compiler looks although no flag says so.
constexpr const char* kSearchPaths[] = {"CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"};

// FNV-1a of 128 bits: it keeps apart what a user has, and needs no protection from forgery in the user's own
// folder.
class Hash {
 public:
  void add(const std::string& text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
    mix(256);  // so that "ab" + "c" is not "a" + "bc"
  }
  std::string text() const {
    char out[33];
    std::snprintf(out, sizeof out, "%016llx%016llx", static_cast<unsigned long long>(state_ >> 64),
                  static_cast<unsigned long long>(state_));
    return out;
  }

 private:
  __extension__ using Wide = unsigned __int128;
  void mix(unsigned value) {
    state_ ^= value;
    state_ *= (Wide{1} << 88) + 0x13b;
  }
  Wide state_ = (Wide{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;
};

std::optional<std::string> file_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Size and time of a file; enough to notice that a compiler or library was replaced.
std::string identity(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return path + " missing";
  return concat(path, " ", info.st_size, " ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec);
}

struct Compiler {
  std::vector<std::string> words;  ///< CXX="ccache g++" is two
};

Compiler find_compiler(const BuildFlags& flags, const EnvVars& variables) {
  const auto named = variables.get("CXX");
  std::vector<std::string> candidates = {flags.compiler, "c++", "g++", "clang++"};
  if (named) candidates = {*named};
  for (const std::string& candidate : candidates) {
    std::vector<std::string> words = split_words(candidate);
    // A path with blanks in it is one word.
    if (!named) words = {candidate};
    if (words.empty() || words.front().empty()) continue;
    try {
      words.front() = find_program(words.front(), variables);
      return {std::move(words)};
    } catch (const LaunchError&) {
      continue;
    }
  }
  throw ConfigError(
      {.what = named ? concat("CXX is ", shell_quote(*named), ", which is no program here")
                     : "no C++ compiler found (c++, g++, clang++ in PATH)",
       .hint = named ? "Set CXX to a C++20 compiler, or unset it."
                     : "Install one (apt-get install g++), or name it with CXX=/path/to/compiler."});
}

// Libraries and object files come after the source, or the linker has no use for them.
bool belongs_after_source(const std::string& word) {
  return word.starts_with("-l") || word.ends_with(".a") || word.ends_with(".so") || word.ends_with(".o");
}

std::vector<std::string> words_of_user(const EnvVars& variables, const std::string& cxxflags) {
  std::vector<std::string> out = split_words(variables.get("CXXFLAGS").value_or(""));
  for (const std::string& word : split_words(variables.get("LDFLAGS").value_or(""))) out.push_back(word);
  for (const std::string& word : split_words(cxxflags)) out.push_back(word);
  return out;
}

bool is_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// The files that the user's words name: objects and archives ("a.o", "-Wl,a.o", "-fplugin=a.so", "@file") and
// libraries ("-la" in the folders of -L and LIBRARY_PATH).
std::vector<std::string> files_of_user(const std::vector<std::string>& users, const EnvVars& variables) {
  std::vector<std::string> folders = split(variables.get("LIBRARY_PATH").value_or(""), ':');
  std::vector<std::string> libraries;
  std::vector<std::string> candidates;
  // "-lm" or "-l m".
  const auto value = [&](size_t at, std::string_view flag) -> std::optional<std::string> {
    if (!users[at].starts_with(flag)) return std::nullopt;
    if (users[at].size() > flag.size()) return users[at].substr(flag.size());
    return at + 1 < users.size() ? std::optional(users[at + 1]) : std::nullopt;
  };
  for (size_t at = 0; at < users.size(); ++at) {
    if (const auto folder = value(at, "-L")) folders.push_back(*folder);
    if (const auto library = value(at, "-l")) libraries.push_back(*library);
    for (const std::string& part : split(users[at], ',')) {
      candidates.push_back(part.starts_with("@") ? part.substr(1) : part);
      candidates.push_back(part.substr(part.find('=') + 1));
    }
  }
  for (const std::string& folder : folders) {
    for (const std::string& library : libraries) {
      const std::string path = concat(folder.empty() ? "." : folder, "/");
      if (library.starts_with(":")) candidates.push_back(path + library.substr(1));
      for (const char* end : {".so", ".a"}) candidates.push_back(concat(path, "lib", library, end));
    }
  }
  std::erase_if(candidates, [](const std::string& path) { return !is_file(path); });
  return candidates;
}

bool may_be_relative(const std::vector<std::string>& users, const EnvVars& variables) {
  for (const char* name : kSearchPaths) {
    const auto paths = variables.get(name);
    if (!paths) continue;
    for (const std::string& path : split(*paths, ':')) {
      if (!path.starts_with("/")) return true;
    }
  }
  return std::any_of(users.begin(), users.end(), [](const std::string& word) {
    const bool switches = word.starts_with("-O") || word.starts_with("-D") || word.starts_with("-W") ||
                          word.starts_with("-f") || word.starts_with("-g") || word.starts_with("-m") ||
                          word.starts_with("-std=") || word == "-pthread";
    const bool absolute = word.starts_with("/") || word.starts_with("-I/") || word.starts_with("-L/");
    return !switches && !absolute;
  });
}

std::vector<std::string> command_line(const Compiler& compiler, const BuildFlags& flags,
                                      const std::vector<std::string>& users, const std::string& source) {
  std::vector<std::string> out = compiler.words;
  out.insert(out.end(), {"-std=c++20", "-O2"});
  for (const std::string& definition : flags.definitions) out.push_back("-D" + definition);
  // As system headers: no warnings from them, and they are left out of the list of the user's own.
  for (const std::string& folder : flags.include_directories) out.insert(out.end(), {"-isystem", folder});
  out.insert(out.end(), flags.compile_options.begin(), flags.compile_options.end());
  std::copy_if(users.begin(), users.end(), std::back_inserter(out), std::not_fn(belongs_after_source));
  out.push_back(source);
  std::copy_if(users.begin(), users.end(), std::back_inserter(out), belongs_after_source);
  out.push_back("-Wl,--as-needed");
  out.insert(out.end(), flags.libraries.begin(), flags.libraries.end());
  out.insert(out.end(), flags.link_options.begin(), flags.link_options.end());
  for (const std::string& folder : flags.run_paths)
    out.insert(out.end(), {"-Xlinker", "-rpath", "-Xlinker", folder});
  return out;
}

fs::path cache_folder(const EnvVars& variables) {
  fs::path base;
  if (const auto cache = variables.get("XDG_CACHE_HOME"); cache && cache->starts_with("/")) {
    base = *cache;
  } else if (const auto home = variables.get("HOME")) {
    base = fs::path(*home) / ".cache";
  } else {
    throw ConfigError({.what = "no place for compiled programs: neither XDG_CACHE_HOME nor HOME is set",
                       .hint = "Set XDG_CACHE_HOME to a folder."});
  }
  const fs::path folder = base / "accelerate" / "programs";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw ConfigError({.what = concat("can't make the folder ", shell_quote(folder.string())),
                       .got = error.message(),
                       .hint = "Set XDG_CACHE_HOME to a folder that you may write to."});
  }
  return folder;
}

// Folders that compilations were killed in.
void sweep(const fs::path& cache) {
  std::error_code error;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(24);
  for (const auto& entry : fs::directory_iterator(cache, error)) {
    std::error_code ignored;
    const bool temporary = entry.path().filename().string().starts_with("tmp-");
    if (temporary && entry.last_write_time(ignored) < old) fs::remove_all(entry.path(), ignored);
  }
}

// Opens and locks a program of the cache; empty when it is not there.
UniqueFd take_into_use(const fs::path& program) {
  if (::access(program.c_str(), X_OK) != 0) return {};
  UniqueFd fd(::open(program.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::flock(fd.get(), LOCK_SH) != 0) return {};
  struct stat info {};
  const bool removed_meanwhile = ::fstat(fd.get(), &info) != 0 || info.st_nlink == 0;
  if (removed_meanwhile) return {};
  ::utimensat(AT_FDCWD, program.c_str(), nullptr, 0);
  return fd;
}

struct CachedFile {
  fs::path path;
  fs::file_time_type used;
  uintmax_t bytes = 0;
};

// The programs in the cache, the latest used first.
std::vector<CachedFile> cached_programs(const fs::path& cache) {
  std::vector<CachedFile> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(cache, error)) {
    std::error_code gone;
    const bool program = entry.is_regular_file(gone) && entry.path().extension() != kListExtension;
    if (!program || gone) continue;
    const CachedFile file{entry.path(), entry.last_write_time(gone), entry.file_size(gone)};
    if (!gone) out.push_back(file);
  }
  std::sort(out.begin(), out.end(), [](const CachedFile& a, const CachedFile& b) { return a.used > b.used; });
  return out;
}

// The list of headers goes with the program: where several programs share one, the others are compiled anew
// when they are next wanted.
void remove_unused(const CachedFile& file) {
  const UniqueFd fd(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return;
  const std::string name = file.path.string();
  std::error_code ignored;
  fs::remove(file.path, ignored);
  fs::remove(name.substr(0, name.rfind('-')) + kListExtension, ignored);
}

// Back to the limits of the cache.
void prune(const fs::path& cache) {
  size_t count = 0;
  uintmax_t bytes = 0;
  for (const CachedFile& file : cached_programs(cache)) {
    bytes += file.bytes;
    if (++count > kMostPrograms || bytes > kMostBytes) remove_unused(file);
  }
}

// A folder that is removed at the end.
class WorkFolder {
 public:
  explicit WorkFolder(const fs::path& cache) {
    std::string name = (cache / "tmp-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw ConfigError({.what = concat("can't write to ", shell_quote(cache.string())),
                         .got = errno_text(errno),
                         .hint = "Set XDG_CACHE_HOME to a folder that you may write to."});
    }
    path_ = name;
  }
  ~WorkFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// The files of a make rule "target: a b \<newline> c", one a line.
std::string headers_of_rule(const std::string& rule) {
  std::string joined = rule.substr(std::min(rule.find(':') + 1, rule.size()));
  // "\ " is a blank inside a name, which split_words() understands; "\<newline>" only continues the line.
  for (size_t at = joined.find("\\\n"); at != std::string::npos; at = joined.find("\\\n", at)) {
    joined[at] = ' ';
  }
  std::string out;
  for (const std::string& name : split_words(joined)) {
    std::error_code ignored;
    out += fs::absolute(name, ignored).string() + "\n";
  }
  return out;
}

// The second hash, over the files that are named in the list.
std::string hash_of_headers(const std::string& list) {
  Hash hash;
  for (const std::string& name : split(list, '\n')) {
    hash.add(name);
    hash.add(file_text(name).value_or("missing"));
  }
  return hash.text();
}

void wait_for_end(const ChildProcess& child, detail::SignalPipe& signals, std::chrono::milliseconds limit) {
  pollfd items[2] = {{child.pidfd(), POLLIN, 0}, {signals.fd(), POLLIN, 0}};
  // Without pidfd (before Linux 5.3) the end is found by looking.
  const auto most = child.pidfd() < 0 ? std::chrono::milliseconds(20) : limit;
  ::poll(items, 2, static_cast<int>(most.count()));
}

// The compiler removes its own temporary files if it is asked.
[[noreturn]] void stop_compiler(ChildProcess& child, int number, const std::string& source) {
  child.signal_group(number);
  const Deadline deadline = Deadline::after(kCompilerGrace);
  child.wait(deadline);
  while (child.group_exists() && !deadline.expired()) ::usleep(5000);
  child.signal_group(SIGKILL);
  throw CompileInterrupted(number, source);
}

void compile(std::vector<std::string> command, const std::string& source, const BuildFlags& flags,
             const EnvVars& variables, detail::SignalPipe& signals) {
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables.values()) environment.push_back(concat(name, "=", value));
  const std::string program = command.front();
  command.erase(command.begin());
  // In a group of its own, which all of its parts end with.
  ChildProcess child = spawn({.program = program,
                              .arguments = std::move(command),
                              .environment = std::move(environment),
                              .working_directory = {},
                              .inherited_fds = {},
                              .keep_ignored = {}});
  std::optional<WaitStatus> status;
  while (!(status = child.poll())) {
    wait_for_end(child, signals, kLookInterval);
    if (const auto number = signals.next()) stop_compiler(child, *number, source);
  }
  if (status->success()) return;
  throw ConfigError({.what = concat(source, " was not compiled: ", program, " ", status->describe()),
                     .hint = flags.torch
                                 ? "Its messages are above."
                                 : "Its messages are above. This accelerate was built without torch, so "
                                   "programs can use accelerate::core only."});
}

}  // namespace

CompileInterrupted::CompileInterrupted(int signal_number, const std::string& source)
    : std::runtime_error(concat(signal_name(signal_number), ": compiling ", source, " was stopped")),
      signal_(signal_number) {}

bool is_source_file(const std::string& name) {
  return name.ends_with(".cpp") || name.ends_with(".cc") || name.ends_with(".cxx");
}

void check_source(const std::string& source) {
  struct stat info {};
  if (::stat(source.c_str(), &info) != 0) {
    throw LaunchError(
        {.what = concat("source ", source, ": ", errno_text(errno)),
         .hint = "Check the path; flags of `accel launch` go before it, flags of the program after it."});
  }
  if (!S_ISREG(info.st_mode)) throw LaunchError({.what = concat("source ", source, " is no regular file")});
}

CachedProgram compile_program(const std::string& source, const std::string& cxxflags,
                              const EnvVars& variables, bool quiet) {
  check_source(source);
  const BuildFlags flags = read_build_flags();
  const Compiler compiler = find_compiler(flags, variables);
  std::error_code error;
  const fs::path place = fs::canonical(source, error);
  const auto text = file_text(place);
  if (!text) throw LaunchError({.what = concat("source ", source, " can't be read")});
  const std::vector<std::string> users = words_of_user(variables, cxxflags);
  std::vector<std::string> command = command_line(compiler, flags, users, place.string());

  Hash hash;
  hash.add(*text);
  for (const std::string& word : command) hash.add(word);
  for (const std::string& word : compiler.words) hash.add(identity(word));
  for (const std::string& library : flags.libraries) hash.add(identity(library));
  hash.add(flags.version);
  for (const std::string& file : files_of_user(users, variables)) hash.add(identity(file));
  for (const char* name : kSearchPaths) hash.add(variables.get(name).value_or(""));
  // The same relative path names something else elsewhere.
  if (may_be_relative(users, variables)) hash.add(fs::current_path(error).string());
  const fs::path cache = cache_folder(variables);
  const std::string name = concat(place.stem().string().substr(0, 64), "-", hash.text());
  const fs::path list = cache / (name + kListExtension);
  const auto program = [&](const std::string& headers) {
    return cache / concat(name, "-", hash_of_headers(headers));
  };
  if (const auto headers = file_text(list)) {
    const fs::path known = program(*headers);
    if (UniqueFd in_use = take_into_use(known)) return {known.string(), std::move(in_use)};
  }

  sweep(cache);
  detail::SignalPipe signals(detail::signals_to_handle());
  const WorkFolder work(cache);
  const fs::path output = work.path() / "program";
  command.insert(command.end(), {"-o", output.string(), "-MMD", "-MF", (work.path() / "rule").string()});
  const auto start = std::chrono::steady_clock::now();
  compile(command, source, flags, variables, signals);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string headers = headers_of_rule(file_text(work.path() / "rule").value_or(""));
  std::ofstream(work.path() / "headers") << headers;
  // In use before others can see it.
  UniqueFd in_use = take_into_use(output);
  const fs::path made = program(headers);
  fs::rename(output, made);
  fs::rename(work.path() / "headers", list);
  prune(cache);
  if (const auto number = signals.next()) throw CompileInterrupted(*number, source);
  if (!quiet) {
    char line[64];
    std::snprintf(line, sizeof line, "compiled in %.1f s", seconds);
    std::cerr << "accel: " << source << " " << line << "\n";
  }
  return {made.string(), std::move(in_use)};
}

}  // namespace accelerate::cli
