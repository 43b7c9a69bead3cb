#include "launcher/os/worker/guardian.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "launcher/core/text/signals.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/machine/start_memory.hpp"
#include "launcher/os/worker/attempt_cgroup.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/net/io/standard_descriptors.hpp"

namespace torchup {
namespace {

/// An inner process that ends by itself has given that time to all below it.
constexpr Duration second_kill_limit = std::chrono::seconds{1};

/// The way in which a process ended, as a shell shows it.
int shell_status(int status) { return WIFSIGNALED(status) ? shell_code(WTERMSIG(status)) : WEXITSTATUS(status); }

void tell_of_killed_agent(int number, bool all_gone) {
  char text[160];
  const int length = std::snprintf(text, sizeof text, "torchup: the agent was killed by signal %d (%s); %s\n", number,
                                   ::strsignal(number),
                                   all_gone ? "its processes are ended" : "some of its processes cannot be ended");
  if (length > 0) static_cast<void>(!::write(STDERR_FILENO, text, static_cast<std::size_t>(length)));
}

/// Reaps whatever has ended, and strikes it from `inherited`. Returns true, with its status, when the inner process was
/// among it.
bool reap_all(pid_t inner, int& status, std::vector<pid_t>& inherited) {
  bool inner_ended = false;
  while (true) {
    int ended_status = 0;
    const pid_t pid = ::waitpid(-1, &ended_status, WNOHANG);
    if (pid <= 0) return inner_ended;
    std::erase(inherited, pid);
    if (pid != inner) continue;
    status = ended_status;
    inner_ended = true;
  }
}

/// Those by which a start that waits for a file or a driver can be ended.
sigset_t ending_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) ::sigaddset(&signals, number);
  return signals;
}

/// `inherited`: children that this process had before it was torchup, as the tee of `exec > >(tee log); exec torchup
/// …`: they are none of ours, and end with what they read.
[[noreturn]] void stand_guard(pid_t inner, const std::string& cgroup_tag, std::vector<pid_t> inherited) {
  const sigset_t signals = guarded_signals();
  const timespec start{std::chrono::duration_cast<std::chrono::seconds>(start_memory_kept).count(), 0};
  int status = 0;
  int last_passed_on = 0;
  bool starting = true;
  while (!reap_all(inner, status, inherited)) {
    const int number = starting ? ::sigtimedwait(&signals, nullptr, &start) : ::sigwaitinfo(&signals, nullptr);
    if (number < 0 && errno == EAGAIN) {
      starting = false;
      give_back_start_memory();
    }
    if (number <= 0 || number == SIGCHLD) continue;
    ::kill(inner, number);
    last_passed_on = number;
    // The workers are stopped and resumed by the inner process; we stop as the terminal expects it.
    if (number == SIGTSTP) ::raise(SIGSTOP);
  }
  const bool all_gone = kill_descendants(WIFSIGNALED(status) ? last_kill_limit : second_kill_limit, inherited);
  if (WIFSIGNALED(status)) remove_attempt_cgroups(cgroup_tag);
  // A start that was interrupted needs no explanation.
  const bool interrupted = WIFSIGNALED(status) && WTERMSIG(status) == last_passed_on;
  if (WIFSIGNALED(status) && !interrupted) tell_of_killed_agent(WTERMSIG(status), all_gone);
  ::_exit(shell_status(status));
}

}  // namespace

sigset_t guarded_signals() {
  sigset_t signals;
  ::sigfillset(&signals);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPIPE, SIGTTIN, SIGTTOU}) {
    ::sigdelset(&signals, fault);
  }
  return signals;
}

bool is_ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

/// As Guarded::heritage says.
std::vector<int> ignored_by_user() {
  std::vector<int> found;
  for (int number = 1; number < NSIG; ++number) {
    const auto handled = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGXFSZ};
    if (std::ranges::find(handled, number) == handled.end() && is_ignored(number)) found.push_back(number);
  }
  return found;
}

void answer_for_workers() {
  const sigset_t signals = guarded_signals();
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::prctl(PR_SET_PDEATHSIG, 0);
}

Guarded become_guarded() {
  fill_standard_descriptors();
  const sigset_t signals = guarded_signals();
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  const bool hangup_ignored = is_ignored(SIGHUP);
  Heritage heritage{.ignored_signals = ignored_by_user()};
  // An ignored signal is not even kept for a blocked one: back to the default, except where the user asked for it.
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
    ::sigaction(number, &by_default, nullptr);
  }
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  for (const int number : {SIGPIPE, SIGTTIN, SIGTTOU}) ::sigaction(number, &ignored, nullptr);
  become_subreaper();

  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) {
    std::perror("torchup: pipe");
    ::_exit(exit_code::unfit);
  }
  const pid_t outer = ::getpid();
  std::string tag = cgroup_tag();
  std::vector<pid_t> inherited = has_children() ? descendants() : std::vector<pid_t>{};
  // Not by Boost.Process: nothing is executed, this very process goes on twice.
  const pid_t inner = ::fork();
  if (inner < 0) {
    std::perror("torchup: no new process (the limit of processes: ulimit -u, or pids.max of the cgroup)");
    ::_exit(exit_code::unfit);
  }
  if (inner > 0) {
    ::close(pipe[0]);
    stand_guard(inner, tag, std::move(inherited));
  }
  ::close(pipe[1]);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != outer) ::_exit(shell_code(SIGKILL));  // it died before it could take us along
  const sigset_t ending = ending_signals();
  ::sigprocmask(SIG_UNBLOCK, &ending, nullptr);
  ::setsid();
  become_subreaper();  // not inherited
  ::getrlimit(RLIMIT_NOFILE, &heritage.descriptor_limit);
  const rlim_t most = heritage.descriptor_limit.rlim_max;
  const rlimit raised{most, most};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return {UniqueFd{pipe[0]}, outer, std::move(tag), hangup_ignored, std::move(heritage)};
}

}  // namespace torchup
