#include "torchup/spawn.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "rendezvous/base/worker_env.hpp"
#include "rendezvous/net/io/unique_fd.hpp"
#include "worker_runtime/group/backend_factory.hpp"
#include "worker_runtime/place/throw_error.hpp"
#include "worker_runtime/place/worker_place.hpp"
#include "worker_runtime/worker/template_service.hpp"

extern char** environ;

namespace torchup {

namespace {

using namespace std::chrono_literals;
constexpr auto grace = 5s;

std::vector<std::string> environment_of(int rank, int nprocs, int port) {
  WorkerEnv env;
  env.rank = Rank{rank};
  env.local_rank = LocalRank{rank};
  env.role_rank = Rank{rank};
  env.world_size = env.local_world_size = env.role_world_size = nprocs;
  env.master_addr = "127.0.0.1";
  env.master_port = Port{static_cast<std::uint16_t>(port)};
  env.run_id = "spawn";
  env.use_agent_store = true;  // we are the agent
  std::vector<std::string> lines;
  bool has_threads = false;
  const auto variables = to_variables(env);
  for (char** line = environ; *line != nullptr; ++line) {
    const std::string_view text = *line;
    const std::string_view name = text.substr(0, text.find('='));
    has_threads = has_threads || name == "OMP_NUM_THREADS";
    if (std::ranges::none_of(variables, [&](const auto& variable) { return variable.first == name; }))
      lines.emplace_back(text);
  }
  for (const auto& [name, value] : variables) {
    if (!value.empty()) lines.push_back(name + "=" + value);
  }
  if (nprocs > 1 && !has_threads)
    lines.emplace_back("OMP_NUM_THREADS=1");  // as launchers do: the processes share the cores
  return lines;
}

pid_t start(char** argv, const std::vector<std::string>& environment) {
  std::vector<char*> pointers;
  for (const std::string& line : environment) pointers.push_back(const_cast<char*>(line.c_str()));
  pointers.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {  // system calls only: the parent may have threads
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() == parent) ::execve("/proc/self/exe", argv, pointers.data());
    ::_exit(127);
  }
  return child;
}

/// The processes meet on this machine only, so nobody else needs to reach the store.
UniqueFd listen_on_this_machine() {
  UniqueFd listener{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!listener || ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0)
    throw_error(fmt::format("spawn: cannot listen on 127.0.0.1: {}", std::strerror(errno)));
  return listener;
}

std::uint16_t port_of(int listener) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw_error(fmt::format("spawn: getsockname: {}", std::strerror(errno)));
  return ntohs(address.sin_port);
}

int code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/// Waits for all; when one fails the rest is ended.
int wait_for_all(std::vector<pid_t> workers) {
  using Clock = std::chrono::steady_clock;
  int result = 0;
  Clock::time_point kill_at = Clock::time_point::max();
  while (!workers.empty()) {
    int status = 0;
    const bool stopping = kill_at != Clock::time_point::max();
    // Without a failure there is nothing to be on time for.
    const pid_t ended = ::waitpid(-1, &status, stopping ? WNOHANG : 0);
    if (ended > 0 && std::erase(workers, ended) > 0) {
      if (const int code = code_of(status); code != 0 && !stopping) {
        result = code;
        kill_at = Clock::now() + grace;
        for (const pid_t worker : workers) ::kill(worker, SIGTERM);
      }
    } else if (ended == 0) {
      if (Clock::now() >= kill_at) {
        for (const pid_t worker : workers) ::kill(worker, SIGKILL);
      }
      ::poll(nullptr, 0, 20);
    } else if (ended < 0 && errno != EINTR) {
      break;
    }
  }
  return result;
}

}  // namespace

int spawn(int argc, char** argv, const Train& train, int nprocs, const WorkerOptions& options) {
  serve_as_template();  // whose environment names no launcher
  const WorkerPlace place = worker_place_from_environment({}, environment_variable);
  if (place.launcher != "nobody") return worker_main(argc, argv, train, options);
  if (nprocs < 0) throw_error(fmt::format("spawn: {} processes", nprocs));
  const int count = nprocs > 0 ? nprocs : std::max(1, visible_gpus().count);

  UniqueFd listener = listen_on_this_machine();
  c10d::TCPStoreOptions store_options;
  store_options.port = port_of(listener.get());
  store_options.masterListenFd = listener.get();
  store_options.isServer = true;
  store_options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", store_options);
  (void)listener.release();  // the store's now
  std::vector<pid_t> workers;
  for (int rank = 0; rank < count; ++rank) {
    const pid_t worker = start(argv, environment_of(rank, count, store->getPort()));
    if (worker < 0) {
      const std::string why = std::strerror(errno);
      for (const pid_t started : workers) ::kill(started, SIGKILL);
      throw_error(fmt::format("spawn: process {} of {} could not be started: {}", rank, count, why));
    }
    workers.push_back(worker);
  }
  return wait_for_all(std::move(workers));
}

}  // namespace torchup
