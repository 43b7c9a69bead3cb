#include "launcher/os/rehearsal/node_fault.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/worker/attempt_cgroup.hpp"

extern char** environ;

namespace torchup {
namespace {

constexpr const char* program_of_helper = "/proc/self/exe";
constexpr int wrong_words_status = 2;
/// Who is stopped starts nobody any more; so often the others are looked for.
constexpr int looks_max = 64;

/// Attributes and actions of one spawn: a session of its own, nothing blocked or handled, no stream of ours.
class Apart {
 public:
  Apart() {
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawn_file_actions_init(&actions_);
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      ::posix_spawn_file_actions_addopen(&actions_, stream, "/dev/null", O_RDWR, 0);
    }
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;
  ~Apart() {
    ::posix_spawnattr_destroy(&attributes_);
    ::posix_spawn_file_actions_destroy(&actions_);
  }
  [[nodiscard]] const posix_spawnattr_t* attributes() const { return &attributes_; }
  [[nodiscard]] const posix_spawn_file_actions_t* actions() const { return &actions_; }

 private:
  posix_spawnattr_t attributes_{};
  posix_spawn_file_actions_t actions_{};
};

template <class T>
bool read_word(const char* word, T& value) {
  const char* const end = word + std::strlen(word);
  const auto [stop, error] = std::from_chars(word, end, value);
  return error == std::errc{} && stop == end;
}

/// Stops both processes of a launcher and all below them, but this one. Returns whom it has stopped, in that order:
/// who was stopped before is somebody else's.
std::vector<pid_t> stop_all(pid_t outer, pid_t inner) {
  std::vector<pid_t> stopped;
  const auto stop = [&](pid_t pid) {
    if (state_letter(pid) == 'T' || std::ranges::find(stopped, pid) != stopped.end()) return false;
    if (::kill(pid, SIGSTOP) != 0) return false;
    stopped.push_back(pid);
    return true;
  };
  stop(inner);  // which would otherwise see the others stop
  stop(outer);
  const std::array own{::getpid()};
  for (int look = 0; look < looks_max; ++look) {
    bool any = false;
    for (const pid_t pid : descendants_of(outer, own)) any = stop(pid) || any;
    if (!any) break;
  }
  return stopped;
}

void sleep_through(std::chrono::milliseconds time) {
  timespec until{};
  ::clock_gettime(CLOCK_MONOTONIC, &until);
  constexpr std::int64_t ms_in_s = 1000, ns_in_ms = 1'000'000, ns_in_s = 1'000'000'000;
  until.tv_sec += time.count() / ms_in_s;
  until.tv_nsec += time.count() % ms_in_s * ns_in_ms;
  until.tv_sec += until.tv_nsec / ns_in_s;
  until.tv_nsec %= ns_in_s;
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

}  // namespace

Result<pid_t> strike_node(pid_t outer, const std::string& cgroup_tag, Duration lasts) {
  std::array<std::string, node_fault_words> words{
      "torchup",
      std::string{node_fault_word},
      std::to_string(outer),
      std::to_string(::getpid()),
      std::to_string(std::chrono::ceil<std::chrono::milliseconds>(lasts).count()),
      cgroup_tag};
  std::array<char*, node_fault_words + 1> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments.at(i) = words.at(i).data();
  const Apart apart;
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, program_of_helper, apart.actions(), apart.attributes(), arguments.data(), environ);
  if (error != 0) return system_error(error, "no process that could bring about the fault");
  return pid;
}

int bring_about_node_fault(char** words) {
  pid_t outer = 0, inner = 0;
  std::int64_t lasts_ms = 0;
  if (!read_word(words[2], outer) || !read_word(words[3], inner) || !read_word(words[4], lasts_ms) || outer <= 1 ||
      inner <= 1 || lasts_ms < 0) {
    return wrong_words_status;
  }
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  const std::vector<pid_t> stopped = stop_all(outer, inner);
  if (lasts_ms == 0) {
    // The outer process last: when it is seen to have ended, nobody is left.
    for (const pid_t pid : stopped) {
      if (pid != outer) ::kill(pid, SIGKILL);
    }
    ::kill(inner, SIGKILL);
    const std::array own{::getpid()};
    for (const pid_t pid : descendants_of(outer, own)) ::kill(pid, SIGKILL);
    ::kill(outer, SIGKILL);
    remove_attempt_cgroups(words[5]);
    return 0;
  }
  sleep_through(std::chrono::milliseconds{lasts_ms});
  for (auto pid = stopped.rbegin(); pid != stopped.rend(); ++pid) ::kill(*pid, SIGCONT);
  return 0;
}

}  // namespace torchup
