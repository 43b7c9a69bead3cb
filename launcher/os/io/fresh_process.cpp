#include "launcher/os/io/fresh_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <limits>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

#if defined(SYS_close_range)
constexpr long all_at_once_call = SYS_close_range;
#else
constexpr long all_at_once_call = 436;
#endif
/// Where the kernel does not close them all at once: as many as a process has without asking for more.
constexpr rlim_t closed_one_by_one_max = 65'536;

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> list;
  list.reserve(words.size() + 1);
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(nullptr);
  return list;
}

/// All but 0 to 2 and `kept`, which is the lowest of the others.
void close_others(int kept) {
  const auto first = static_cast<unsigned>(kept) + 1;
  if (::syscall(all_at_once_call, first, std::numeric_limits<unsigned>::max(), 0U) == 0) return;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  for (int file = kept + 1; file < static_cast<int>(std::min(limit.rlim_cur, closed_one_by_one_max)); ++file)
    ::close(file);
}

/// Runs in the child of a process with threads: system calls only. Tells through `told` why it could not be executed.
[[noreturn]] void become_fresh(const FreshProcess& process, char* const* arguments, char* const* environment,
                               pid_t parent, int told) {
  if (process.own_session) {
    ::setsid();
  } else {
    ::setpgid(0, 0);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before it could take us along
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (int number = 1; number < NSIG; ++number) ::sigaction(number, &by_default, nullptr);
  // None of what is wanted stands in the place of another.
  std::array<int, 3> wanted{process.in, process.out, process.err};
  for (int& file : wanted) {
    file = file >= 0 ? ::fcntl(file, F_DUPFD_CLOEXEC, 4) : ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (file >= 0 && file < 4) file = ::fcntl(file, F_DUPFD_CLOEXEC, 4);
  }
  bool fine = ::dup3(told, 3, O_CLOEXEC) == 3 || told == 3;
  for (int target = 0; target < 3; ++target) {
    fine = fine && ::dup2(wanted.at(static_cast<std::size_t>(target)), target) == target;
  }
  if (fine) {
    close_others(3);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(process.executable.c_str(), arguments, environment);
  }
  const int failure = errno;
  static_cast<void>(!::write(3, &failure, sizeof failure));
  ::_exit(127);
}

}  // namespace

Result<pid_t> start_fresh(const FreshProcess& process) {
  const auto arguments = pointers_to(process.arguments);
  const auto own_environment = pointers_to(process.environment);
  char* const* const environment = process.environment.empty() ? ::environ : own_environment.data();
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error(process.executable);
  const UniqueFd tells{ends[0]};
  UniqueFd told{ends[1]};
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return system_error("no new process for " + process.executable);
  if (pid == 0) become_fresh(process, arguments.data(), environment, parent, told.get());
  told.reset();
  int failure = 0;
  ssize_t size = 0;
  while ((size = ::read(tells.get(), &failure, sizeof failure)) < 0 && errno == EINTR) {
  }
  if (size != sizeof failure) return pid;
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return system_error(failure, process.executable);
}

}  // namespace torchup
