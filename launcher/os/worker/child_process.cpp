#include "launcher/os/worker/child_process.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <limits>
#include <memory>
#include <string_view>
#include <system_error>

#include "launcher/os/io/child_end.hpp"
#include "launcher/os/machine/cpus.hpp"

namespace torchup {

/// What the child needs, made before it exists, and where it leaves the error that kept it from running.
struct Launch {
  const ChildRequest& request;
  char* const* arguments;
  char* const* environment;
  const AffinityMask* cpus;         ///< null: ours
  std::array<char*, 3> pid_digits;  ///< where it writes its pid into its environment, `pid_width` digits; null: nowhere
  pid_t parent;
  std::vector<int> ignored;  ///< signals that we ignore and it does not; exec resets handlers, but not these
  ChildBirth* birth;         ///< null: nobody wants to end it
  const char* failed_call = nullptr;
  int error = 0;
  bool join_cgroup = false;  ///< it was born outside of the request's
  int cgroup_error = 0;      ///< why it could not join

  /// Whoever ends it sees this child, or it sees that it is to end.
  [[gnu::no_sanitize_thread]] void is_born() const {
    birth->pid_ = ::getpid();
    if (birth->ended_) ::kill(::getpid(), SIGKILL);
  }
};

namespace {

constexpr int pid_width = 10;
constexpr std::pair<int, int> oldest_kernel{4, 18};

#if defined(SYS_close_range)
constexpr long close_range_call = SYS_close_range;
#else
constexpr long close_range_call = 436;
#endif

/// What we were started with would be inherited by workers where the kernel does not close it for them.
void keep_from_children() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder{::opendir("/proc/self/fd"), ::closedir};
  while (const dirent* const entry = folder ? ::readdir(folder.get()) : nullptr) {
    const std::string_view name{entry->d_name};
    int file = -1;
    std::from_chars(name.data(), name.data() + name.size(), file);
    if (file > STDERR_FILENO) ::fcntl(file, F_SETFD, FD_CLOEXEC);
  }
}

/// Once, before the first child: a number that no descriptor has closes nothing, and tells whether the call is there.
void prepare_descriptors() {
  static const bool prepared = [] {
    constexpr unsigned none = std::numeric_limits<unsigned>::max();
    if (::syscall(close_range_call, none, none, 0U) != 0) keep_from_children();
    return true;
  }();
  static_cast<void>(prepared);
}

int give_up(Launch& launch, const char* call) {
  launch.failed_call = call;
  launch.error = errno;
  return 127;
}

/// Makes `from` the descriptor `to`, without close-on-exec even where both are the same. By the bare system call:
/// ThreadSanitizer takes a dup2 of the child, whose descriptors are its own, for one of ours.
int install(int from, int to) {
  return from == to ? ::fcntl(to, F_SETFD, 0) : static_cast<int>(::syscall(SYS_dup3, from, to, 0));
}

/// Runs in the child, in our memory: system calls only. It does not return, so ThreadSanitizer is not to count it among
/// this thread's calls.
[[gnu::no_sanitize_thread]] int run_child(void* argument) {
  auto& launch = *static_cast<Launch*>(argument);
  const ChildRequest& request = launch.request;
  if (launch.birth) launch.is_born();

  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (const int number : launch.ignored) ::sigaction(number, &by_default, nullptr);
  if (request.heritage) {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    for (const int number : request.heritage->ignored_signals) ::sigaction(number, &ignore, nullptr);
  }

  if (::setsid() < 0) return give_up(launch, "setsid");
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return give_up(launch, "prctl");
  if (::getppid() != launch.parent) ::_exit(127);  // it died before it could take us along
  // Where Yama lets parents alone trace, what the agent starts to read our stacks may too. Elsewhere it is refused.
  ::prctl(PR_SET_PTRACER, launch.parent, 0, 0, 0);

  if (launch.join_cgroup) {
    // "0" stands for whoever writes it.
    const int members = ::openat(request.cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    if (members < 0 || ::write(members, "0", 1) != 1) launch.cgroup_error = errno;
  }

  if (launch.cpus && (errno = launch.cpus->apply()) != 0) return give_up(launch, "sched_setaffinity");

  // What stands in the way of another is moved out first.
  std::array<int, 5> wanted{request.in.get(), request.out.get(), request.err.get(),
                            request.page >= 0 ? request.page : request.more[0],
                            request.channel ? request.channel.get() : request.more[1]};
  constexpr int targets = static_cast<int>(wanted.size());
  for (int target = 0; target < targets; ++target) {
    int& source = wanted[static_cast<std::size_t>(target)];
    if (source < 0 || source >= targets || source == target) continue;
    source = ::fcntl(source, F_DUPFD_CLOEXEC, targets);
    if (source < 0) return give_up(launch, "dup");
  }
  unsigned first_closed = 3;
  for (int target = 0; target < targets; ++target) {
    const int source = wanted[static_cast<std::size_t>(target)];
    if (source < 0) continue;
    if (install(source, target) < 0) return give_up(launch, "dup2");
    first_closed = std::max(first_closed, static_cast<unsigned>(target) + 1);
  }
  for (char* const digits : launch.pid_digits) {
    if (!digits) continue;
    pid_t pid = ::getpid();
    for (int digit = pid_width - 1; digit >= 0; --digit, pid /= 10) digits[digit] = static_cast<char>('0' + pid % 10);
  }
  // Where the kernel lacks this call, all of them are close-on-exec.
  ::syscall(close_range_call, first_closed, std::numeric_limits<unsigned>::max(), 0U);
  if (request.heritage && ::setrlimit(RLIMIT_NOFILE, &request.heritage->descriptor_limit) != 0)
    return give_up(launch, "setrlimit");

  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(request.executable.c_str(), launch.arguments, launch.environment);
  return give_up(launch, "execve");
}

using ChildStack = std::array<char, 32 * 1024>;
constexpr unsigned long long clone_flags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD;

#if defined(__SANITIZE_THREAD__)
/// ThreadSanitizer's own clone takes the child for one of fork, which has memory of its own: in ours it tells the
/// sanitizer to see no race of this thread any more. This is the C library's, by its other name.
extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...);
constexpr auto clone_child = &__clone;
#else
constexpr auto clone_child = &::clone;
#endif

/// clone(2), but the child is born in a cgroup. To join it later, by its cgroup.procs, can take tens of milliseconds:
/// the kernel waits until all processors have seen it. The C library has no function for this, only the bare system
/// call, from which the child returns onto an empty stack: so it must not return at all. -1 where it cannot be done.
pid_t clone_into_cgroup(Launch& launch, ChildStack& stack, int& pidfd) {
#if !defined(__x86_64__) && !defined(__aarch64__)
  static_cast<void>(launch), static_cast<void>(stack), static_cast<void>(pidfd);
  return -1;
#else
  clone_args request{};
  request.flags = clone_flags | CLONE_INTO_CGROUP;
  request.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  request.exit_signal = SIGCHLD;
  request.stack = reinterpret_cast<std::uintptr_t>(stack.data());
  request.stack_size = stack.size();
  request.cgroup = static_cast<std::uint64_t>(launch.request.cgroup);
#if defined(__x86_64__)
  long result = SYS_clone3;
  asm volatile(
      "syscall\n\t"
      "testq %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "movq %[launch], %%rdi\n\t"
      "callq *%[run]\n\t"
      "movl %%eax, %%edi\n\t"
      "movl %[exit], %%eax\n\t"
      "syscall\n\t"
      "hlt\n"
      "1:"
      : "+a"(result)
      : "D"(&request), "S"(sizeof request), [launch] "r"(&launch), [run] "r"(&run_child), [exit] "i"(SYS_exit_group)
      : "rcx", "r11", "memory", "cc");
  return result < 0 ? -1 : static_cast<pid_t>(result);
#elif defined(__aarch64__)
  register long result asm("x0") = reinterpret_cast<long>(&request);
  register long size asm("x1") = sizeof request;
  register long call asm("x8") = SYS_clone3;
  asm volatile(
      "svc #0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x0, %[launch]\n\t"
      "blr %[run]\n\t"
      "mov x8, %[exit]\n\t"
      "svc #0\n\t"
      "brk #0\n"
      "1:"
      : "+r"(result), "+r"(size), "+r"(call)
      : [launch] "r"(&launch), [run] "r"(&run_child), [exit] "i"(SYS_exit_group)
      : "x30", "memory", "cc");
  return result < 0 ? -1 : static_cast<pid_t>(result);
#endif
#endif
}

void append(std::vector<char*>& list, const std::vector<std::string>& words) {
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
}

std::vector<char*> arguments_of(const ChildRequest& request) {
  std::vector<char*> list;
  list.reserve(request.arguments.size() + 1);
  append(list, request.arguments);
  list.push_back(nullptr);
  return list;
}

/// Lines of `more` that are empty are left out.
std::vector<char*> environment_of(const ChildRequest& request, std::array<std::string, 3>& more) {
  const std::size_t common = request.common_environment ? request.common_environment->size() : 0;
  std::vector<char*> list;
  list.reserve(request.environment.size() + common + more.size() + 1);
  for (std::string& line : more) {
    if (!line.empty()) list.push_back(line.data());
  }
  append(list, request.environment);
  if (common > 0) append(list, *request.common_environment);
  list.push_back(nullptr);
  return list;
}

/// "NAME=…:0000000000": an address whose pid the child writes itself.
std::string line_without_pid(std::string line) {
  line.erase(line.rfind(':') + 1).append(pid_width, '0');
  return line;
}

std::vector<int> ignored_signals() {
  static const std::vector<int> list = [] {
    std::vector<int> found;
    for (int number = 1; number < NSIG; ++number) {
      struct sigaction action {};
      if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) found.push_back(number);
    }
    return found;
  }();
  return list;
}

/// Blocks all signals of this thread while it lives: a handler must not run in the child, which has our memory.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

void ChildBirth::end() {
  const std::lock_guard lock{mutex_};
  ended_ = true;
  if (const pid_t pid = pid_; pid > 0) ::kill(pid, SIGKILL);
}

Result<ChildProcess> start_child(const ChildRequest& request, ChildBirth* birth) {
  const auto line = [](const char* name, const auto& address) {
    return line_without_pid(fmt::format("{}={}", name, to_text(address)));
  };
  std::array<std::string, 3> lines;
  if (request.page >= 0) lines[0] = line(worker_page_variable, request.page_address);
  if (request.channel) lines[1] = line(worker_channel_variable, request.channel_address);
  if (!request.own_address.empty()) lines[2] = line_without_pid(request.own_address);
  prepare_descriptors();
  const auto arguments = arguments_of(request);
  const auto environment = environment_of(request, lines);
  std::array<char*, 3> pid_digits{};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].empty()) pid_digits[i] = lines[i].data() + lines[i].size() - pid_width;
  }
  std::optional<AffinityMask> mask;
  if (!request.cpus.empty()) mask.emplace(request.cpus);
  Launch launch{request,    arguments.data(), environment.data(), mask ? &*mask : nullptr,
                pid_digits, ::getpid(),       ignored_signals(),  birth};
  alignas(16) ChildStack stack;
  int pidfd = -1;
  pid_t pid = -1;
  {
    const SignalsBlocked blocked;
    if (request.cgroup >= 0) pid = clone_into_cgroup(launch, stack, pidfd);
    launch.join_cgroup = request.cgroup >= 0 && pid < 0;
    const auto clone_with = [&](unsigned long long flags) {
      return clone_child(run_child, stack.data() + stack.size(), static_cast<int>(flags | SIGCHLD), &launch, &pidfd);
    };
    if (pid < 0) pid = clone_with(clone_flags);
    // An old kernel passes over the flag of a pidfd; a filter may know no such flag.
    if (pid < 0 && (errno == EINVAL || errno == EPERM)) pid = clone_with(clone_flags & ~CLONE_PIDFD);
  }
  if (pid < 0) return system_error("no new process for " + request.executable);
  if (birth) {
    const std::lock_guard lock{birth->mutex_};
    birth->pid_ = 0;
  }
  ChildProcess child{pid, UniqueFd{pidfd}, ""};
  if (pidfd < 0 || !has_pidfds()) {
    auto end = watch_child(pid);
    if (!end) {
      ::kill(pid, SIGKILL);
      static_cast<void>(reap_child(pid));
      return end.error();
    }
    child.pidfd = *std::move(end);
  }
  if (launch.cgroup_error != 0) child.outside_cgroup = std::generic_category().message(launch.cgroup_error);
  if (launch.error == 0) return child;
  static_cast<void>(reap_child(pid));
  std::string what = request.executable;
  if (std::string{launch.failed_call} != "execve") what += std::string{": "} + launch.failed_call;
  return system_error(launch.error, what);
}

Result<> check_kernel() {
  utsname system{};
  ::uname(&system);
  return check_release(system.release);
}

Result<> check_release(std::string_view release) {
  std::pair<int, int> version{};
  const char* const end = release.data() + release.size();
  const auto major = std::from_chars(release.data(), end, version.first);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != '.') return {};
  if (std::from_chars(major.ptr + 1, end, version.second).ec != std::errc{} || version >= oldest_kernel) return {};
  return fail(errc::refused, fmt::format("Linux {}.{} is too old: torchup needs {}.{}", version.first, version.second,
                                         oldest_kernel.first, oldest_kernel.second));
}

}  // namespace torchup
