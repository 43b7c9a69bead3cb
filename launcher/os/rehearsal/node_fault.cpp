#include "launcher/os/rehearsal/node_fault.hpp"

#include <fcntl.h>
#include <poll.h>
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
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "launcher/os/io/child_end.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/worker/attempt_cgroup.hpp"
#include "rendezvous/base/exit_codes.hpp"

extern char** environ;

namespace torchup {
namespace {

constexpr const char* program_of_helper = "/proc/self/exe";
constexpr std::int64_t poll_ms_max = 60'000;
constexpr std::int64_t look_again_ms = 10;
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

/// A process that is no child of ours; empty where there are no pidfds, or no such process.
UniqueFd pidfd_of(pid_t pid) {
  auto watched = has_pidfds() ? watch_child(pid) : Result<UniqueFd>{UniqueFd{}};
  return watched ? *std::move(watched) : UniqueFd{};
}

/// Until the time is over, or one of them is gone: whoever stands still cannot see that himself. `watched` are their
/// pidfds; where there are none, they are looked for again and again.
void sleep_beside(const std::array<pid_t, 2>& launcher, std::span<const UniqueFd> watched,
                  std::chrono::milliseconds time) {
  const TimePoint end = std::chrono::steady_clock::now() + time;
  std::vector<pollfd> places;
  for (const UniqueFd& process : watched) places.push_back({process.get(), POLLIN, 0});  // a poll passes over -1
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    if (left.count() <= 0 || std::ranges::any_of(launcher, [](pid_t pid) { return ::kill(pid, 0) != 0; })) return;
    const std::int64_t step = has_pidfds() ? poll_ms_max : look_again_ms;
    if (::poll(places.data(), places.size(), static_cast<int>(std::min<std::int64_t>(left.count(), step))) > 0) return;
  }
}

}  // namespace

Result<NodeFaultHelper> strike_node(pid_t outer, const std::string& cgroup_tag, Duration lasts) {
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
  const int failure =
      ::posix_spawn(&pid, program_of_helper, apart.actions(), apart.attributes(), arguments.data(), environ);
  if (failure != 0) return system_error(failure, "no process that could bring about the fault");
  auto end = watch_child(pid);
  if (!end) {
    ::kill(pid, SIGKILL);
    return Error{end.error().code, "the process that brings about the fault cannot be watched"};
  }
  return NodeFaultHelper{pid, *std::move(end)};
}

int bring_about_node_fault(char** words) {
  pid_t outer = 0, inner = 0;
  std::int64_t lasts_ms = 0;
  if (!read_word(words[2], outer) || !read_word(words[3], inner) || !read_word(words[4], lasts_ms) || outer <= 1 ||
      inner <= 1 || lasts_ms < 0) {
    return exit_code::refused;
  }
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  const std::array watched{pidfd_of(outer), pidfd_of(inner)};
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
  sleep_beside({outer, inner}, watched, std::chrono::milliseconds{lasts_ms});
  for (auto pid = stopped.rbegin(); pid != stopped.rend(); ++pid) ::kill(*pid, SIGCONT);
  return 0;
}

}  // namespace torchup
