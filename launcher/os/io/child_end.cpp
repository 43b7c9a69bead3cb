#include "launcher/os/io/child_end.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <system_error>

namespace torchup {
namespace {

/// Thread-local data of ours take 64 KiB of it.
constexpr std::size_t waiting_stack_bytes = 256 * 1024;
/// How often a process is looked for that is to become our child.
constexpr timespec looks_apart{.tv_sec = 0, .tv_nsec = 1'000'000};

#if defined(P_PIDFD)
constexpr auto by_pidfd = P_PIDFD;
#else
constexpr auto by_pidfd = static_cast<idtype_t>(3);
#endif
#if defined(SYS_pidfd_open)
constexpr long pidfd_open_call = SYS_pidfd_open, pidfd_send_signal_call = SYS_pidfd_send_signal;
#else
constexpr long pidfd_open_call = 434, pidfd_send_signal_call = 424;
#endif

struct WaitedChild {
  pid_t pid;
  UniqueFd told;
};

void* wait_for_childs_end(void* argument) {
  const std::unique_ptr<WaitedChild> waiting{static_cast<WaitedChild*>(argument)};
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(waiting->pid), &info, WEXITED | WNOWAIT) != 0) {
    if (errno == EINTR) continue;
    // Not our child yet, or not any more.
    if (errno != ECHILD || ::kill(waiting->pid, 0) != 0) break;
    ::nanosleep(&looks_apart, nullptr);
  }
  static_cast<void>(!::write(waiting->told.get(), "", 1));
  return nullptr;
}

Result<UniqueFd> watch_by_thread(pid_t pid) {
  const std::string what = "a thread that waits for a child";
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error(what);
  UniqueFd end{ends[0]};
  auto waiting = std::make_unique<WaitedChild>(WaitedChild{pid, UniqueFd{ends[1]}});
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, waiting_stack_bytes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const int failure = ::pthread_create(&thread, &attributes, wait_for_childs_end, waiting.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (failure != 0) return system_error(failure, what);
  static_cast<void>(waiting.release());  // the thread's
  return end;
}

}  // namespace

bool has_pidfds() {
  static const bool found = UniqueFd{static_cast<int>(::syscall(pidfd_open_call, ::getpid(), 0))}.get() >= 0;
  return found;
}

Result<UniqueFd> watch_child(pid_t pid) {
  if (!has_pidfds()) return watch_by_thread(pid);
  UniqueFd pidfd{static_cast<int>(::syscall(pidfd_open_call, pid, 0))};
  if (!pidfd) return system_error("a process that cannot be watched");
  return pidfd;
}

int reap_child(pid_t pid) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED) != 0) {
    if (errno != EINTR) throw std::system_error{errno, std::system_category(), "waitid on a child"};
  }
  return info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
}

void reap_if_ended(pid_t pid, int end) {
  siginfo_t info{};
  if (has_pidfds()) {
    // Linux 5.3 knows pidfds, but not here.
    if (::waitid(by_pidfd, static_cast<id_t>(end), &info, WEXITED | WNOHANG) == 0 || errno != EINVAL) return;
  }
  static_cast<void>(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG));
}

void kill_child(pid_t pid, int end) {
  if (has_pidfds() && ::syscall(pidfd_send_signal_call, end, SIGKILL, nullptr, 0) == 0) return;
  pollfd ended{end, POLLIN, 0};
  if (::poll(&ended, 1, 0) == 0) ::kill(pid, SIGKILL);
}

}  // namespace torchup
