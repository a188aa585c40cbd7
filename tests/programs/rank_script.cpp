// A rank whose behaviour is written on its command line: a list of commands that are run in order. "@1"
// before a command limits it to rank 1, "@1#0" to rank 1 in attempt 0, "@#0" to attempt 0.
//   print TEXT     line on standard output          eprint TEXT  line on standard error
//   raw TEXT       standard output as is, with \n and \r for line ends
//   env NAME       line NAME=value                  args N       the rest, N words, as one line
//   exit CODE      at once                          throw TEXT   uncaught std::runtime_error
//   kill SIGNAL    itself, by number                ignore SIGNAL
//   announce SIGNAL  prints "signal N" when it comes, and goes on
//   touch FILE     makes a file FILE.RANK           await FILE   until FILE exists
//   sleep          for ever                         stdin        copies standard input
//   shm            leaves a shared-memory segment of the job behind
//   child          starts a child that ignores SIGTERM and SIGINT and sleeps for ever
//   connect        to rank 0's store, and says so
//   meet           at MASTER_ADDR and MASTER_PORT as programs with a store of their own do: rank 0 listens
//   there
//                  and all others connect
//   cpus           prints the CPUs that this rank may run on
//   topology       what detect_topology() says      nested       starts itself with "topology"
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "accelerate/core/cpu_topology.h"
#include "accelerate/core/error.h"
#include "accelerate/core/shared_memory_names.h"
#include "accelerate/core/strings.h"
#include "accelerate/core/unique_fd.h"
#include "accelerate/environment/registry.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Under mpirun it is called otherwise.
std::string rank() {
  return variable(std::getenv("RANK") != nullptr ? "RANK" : "OMPI_COMM_WORLD_RANK");
}

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

void make_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  if (fd < 0) throw std::runtime_error("can't make " + path);
  ::close(fd);
}

void await(const std::string& path) {
  for (int tries = 0; !exists(path); ++tries) {
    if (tries > 30000) throw std::runtime_error("nobody made " + path);
    ::usleep(1000);
  }
}

std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 1 < text.size();
    if (!escape) {
      out += text[i];
    } else {
      out += text[++i] == 'n' ? '\n' : '\r';
    }
  }
  return out;
}

void write_out(int fd, const std::string& text) {
  [[maybe_unused]] const ssize_t written = ::write(fd, text.data(), text.size());
}

void print_topology() {
  const accelerate::Topology topology = accelerate::detect_topology(accelerate::EnvVars::from_process());
  std::cout << "launcher=" << topology.launcher << " rank=" << topology.rank << "/" << topology.world_size
            << " local=" << topology.local_rank << "/" << topology.local_world_size
            << " node=" << topology.node_rank << "/" << topology.num_nodes << " addr=" << topology.master_addr
            << " port=" << topology.master_port << " fd=" << (topology.listen_fd ? "yes" : "no")
            << " restarts=" << topology.restart_count << " job=" << topology.job_id << std::endl;
}

[[noreturn]] void sleep_for_ever() {
  for (;;) ::pause();
}

void announce(int number) {
  const char text[] = {'s',
                       'i',
                       'g',
                       'n',
                       'a',
                       'l',
                       ' ',
                       static_cast<char>('0' + number / 10),
                       static_cast<char>('0' + number % 10),
                       '\n'};
  [[maybe_unused]] const ssize_t written = ::write(1, text, sizeof text);
}

void start_child() {
  if (::fork() != 0) return;
  ::signal(SIGTERM, SIG_IGN);
  ::signal(SIGINT, SIG_IGN);
  sleep_for_ever();
}

void nested(const char* self) {
  const std::string command = accelerate::shell_quote(self) + " topology";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("the nested program failed");
}

// False when nobody listens there.
bool connect_to(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) throw std::runtime_error(host);
  const accelerate::UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool connected = ::connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0;
  ::freeaddrinfo(found);
  return connected;
}

// As the ranks of a real job reach rank 0's store.
void connect_to_store() {
  const accelerate::Topology topology = accelerate::detect_topology(accelerate::EnvVars::from_process());
  const std::string& host = topology.master_addr;
  if (!connect_to(host, std::to_string(topology.master_port)))
    throw std::runtime_error("no store at " + host);
  write_out(1, "connected to " + host + "\n");
}

// As torch's TCPStore listens: at every address, IPv6 ones included.
void serve_at_master_port(int guests) {
  const accelerate::UniqueFd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<uint16_t>(std::stoi(variable("MASTER_PORT"))));
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), 16) != 0) {
    throw std::runtime_error("MASTER_PORT: " + accelerate::errno_text(errno));
  }
  for (int i = 0; i < guests; ++i) ::close(::accept(fd.get(), nullptr, nullptr));
}

void meet() {
  if (rank() == "0") return serve_at_master_port(std::stoi(variable("WORLD_SIZE")) - 1);
  for (int tries = 0; !connect_to(variable("MASTER_ADDR"), variable("MASTER_PORT")); ++tries) {
    if (tries > 30000) throw std::runtime_error("nobody listens at MASTER_PORT");
    ::usleep(1000);
  }
}

// "@1" or "@1#0" does not apply to this rank or attempt.
bool excluded(const std::string& condition) {
  const auto parts = accelerate::split(condition.substr(1), '#');
  if (!parts[0].empty() && parts[0] != rank()) return true;
  return parts.size() > 1 && parts[1] != variable("TORCHELASTIC_RESTART_COUNT");
}

void run_command(const std::string& command, const std::string& argument, const char* self) {
  if (command == "print") write_out(1, argument + "\n");
  if (command == "eprint") write_out(2, argument + "\n");
  if (command == "raw") write_out(1, unescaped(argument));
  if (command == "env") write_out(1, argument + "=" + variable(argument.c_str()) + "\n");
  if (command == "exit") std::_Exit(std::atoi(argument.c_str()));
  if (command == "throw") throw std::runtime_error(argument);
  if (command == "kill") ::kill(::getpid(), std::atoi(argument.c_str()));
  if (command == "ignore") ::signal(std::atoi(argument.c_str()), SIG_IGN);
  if (command == "announce") ::signal(std::atoi(argument.c_str()), announce);
  if (command == "touch") make_file(argument + "." + rank());
  if (command == "await") await(argument);
  if (command == "sleep") sleep_for_ever();
  if (command == "stdin") std::cout << std::cin.rdbuf() << std::flush;
  if (command == "shm")
    make_file("/dev/shm/" + accelerate::shared_memory_prefix(variable("ACCELERATE_JOB_ID")) + "0");
  if (command == "child") start_child();
  if (command == "connect") connect_to_store();
  if (command == "meet") meet();
  if (command == "cpus")
    write_out(1, "cpus=" + accelerate::format_cpu_list(accelerate::allowed_cpus()) + "\n");
  if (command == "topology") print_topology();
  if (command == "nested") nested(self);
}

bool takes_argument(const std::string& command) {
  for (const char* bare :
       {"sleep", "stdin", "shm", "child", "connect", "meet", "cpus", "topology", "nested"}) {
    if (command == bare) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  // A sanitizer's handler would turn the signal into an exit code.
  ::signal(SIGSEGV, SIG_DFL);
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "args") {
    for (size_t i = 1; i < words.size(); ++i) write_out(1, "<" + words[i] + ">\n");
    return 0;
  }
  for (size_t at = 0; at < words.size(); ++at) {
    bool skip = false;
    for (; at < words.size() && words[at].starts_with('@'); ++at) skip = skip || excluded(words[at]);
    if (at == words.size()) break;
    const std::string command = words[at];
    const std::string argument = takes_argument(command) && at + 1 < words.size() ? words[++at] : "";
    if (!skip) run_command(command, argument, argv[0]);
  }
  return 0;
}
