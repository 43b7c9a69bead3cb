#include "launcher/os/machine/descendants.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <string>
#include <string_view>
#include <thread>

#include "launcher/core/diagnosis/kernel_view.hpp"
#include "launcher/os/io/read_text.hpp"
#include "launcher/os/machine/process_stat.hpp"

#ifndef __WNOTHREAD
#define __WNOTHREAD 0x20000000
#endif

namespace torchup {
namespace {

struct Process {
  pid_t pid;
  pid_t parent;
  char state;
};

/// False when it is gone.
bool read_process(pid_t pid, Process& process) {
  const auto stat = process_stat(pid);
  if (!stat) return false;
  process = {pid, stat->parent, stat->state};
  return true;
}

/// All that live; zombies do not.
std::vector<Process> all_processes() {
  std::vector<Process> list;
  DIR* folder = ::opendir("/proc");
  if (!folder) return list;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (code != std::errc{} || end != name.data() + name.size()) continue;
    Process process{};
    if (read_process(pid, process) && process.state != 'Z' && process.state != 'X') list.push_back(process);
  }
  ::closedir(folder);
  return list;
}

/// The children of all our threads, zombies included.
std::vector<pid_t> own_children() {
  std::vector<pid_t> found;
  bool told = false;
  DIR* const folder = ::opendir("/proc/self/task");
  while (const dirent* entry = folder ? ::readdir(folder) : nullptr) {
    if (entry->d_name[0] == '.') continue;
    const std::string path = std::string{"/proc/self/task/"} + entry->d_name + "/children";
    told = told || ::access(path.c_str(), R_OK) == 0;
    const std::string text = read_text(path);
    const char* const end = text.data() + text.size();
    for (const char* at = text.data(); at < end; ++at) {
      pid_t pid = 0;
      const auto [next, code] = std::from_chars(at, end, pid);
      if (code == std::errc{}) found.push_back(pid);
      at = next;
    }
  }
  if (folder) ::closedir(folder);
  if (told) return found;
  for (const Process& process : all_processes()) {  // a kernel that does not list them
    if (process.parent == ::getpid()) found.push_back(process.pid);
  }
  return found;
}

void signal_all(const std::vector<pid_t>& pids, int number) {
  for (const pid_t pid : pids) ::kill(pid, number);
}

}  // namespace

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> descendants(std::span<const pid_t> but) { return descendants_of(::getpid(), but); }

std::vector<pid_t> descendants_of(pid_t root, std::span<const pid_t> but) {
  const auto processes = all_processes();
  std::vector<pid_t> found{root};
  for (std::size_t next = 0; next < found.size(); ++next) {
    const pid_t parent = found[next];
    for (const Process& process : processes) {
      const bool left_out = std::ranges::find(but, process.pid) != but.end();
      if (process.parent == parent && !left_out) found.push_back(process.pid);
    }
  }
  found.erase(found.begin());
  return found;
}

std::vector<pid_t> left_behind_by(std::span<const Forebear> forebears) {
  std::vector<pid_t> found;
  if (forebears.empty()) return found;
  const auto has_variable = [](const Forebear& each) { return !each.variable.empty(); };
  const bool looks_at_variables = std::ranges::any_of(forebears, has_variable);
  for (const pid_t pid : own_children()) {
    const char state = state_letter(pid);
    if (state == 'Z' || state == 'X' || state == '?') continue;
    const pid_t session = ::getsid(pid);
    std::string environment;
    if (looks_at_variables) environment = '\0' + read_text(fmt::format("/proc/{}/environ", pid));
    const bool theirs = std::ranges::any_of(forebears, [&](const Forebear& each) {
      return each.pid == session ||
             (!each.variable.empty() && environment.find('\0' + each.variable + '\0') != std::string::npos);
    });
    if (theirs) found.push_back(pid);
  }
  return found;
}

char state_letter(pid_t pid) {
  Process process{};
  return read_process(pid, process) ? process.state : '?';
}

std::vector<pid_t> ancestry(pid_t pid) {
  std::vector<pid_t> found;
  const pid_t own = ::getpid();
  while (pid > 1 && pid != own) {
    const auto stat = process_stat(pid);
    if (!stat) return {};
    found.push_back(pid);
    pid = stat->parent;
  }
  return pid == own ? found : std::vector<pid_t>{};
}

bool may_signal(pid_t pid) { return ::kill(pid, 0) == 0 || errno != EPERM; }

bool catches_signal(pid_t pid, int number) {
  return has_signal(parse_thread_status(read_text(fmt::format("/proc/{}/status", pid))).caught_signals, number);
}

bool has_children(std::span<const pid_t> but) {
  siginfo_t info{};
  const bool any = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
  if (!any || but.empty()) return any;
  const auto children = own_children();
  return std::ranges::any_of(children, [&](pid_t pid) { return std::ranges::find(but, pid) == but.end(); });
}

void reap_orphans(std::span<const pid_t> known) {
  if (known.empty()) {
    while (::waitpid(-1, nullptr, WNOHANG | __WNOTHREAD) > 0) {
    }
    return;
  }
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WNOTHREAD) != 0 || info.si_pid == 0) return;
    if (std::ranges::find(known, info.si_pid) != known.end()) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

void kill_descendants_once(std::span<const pid_t> but) {
  // Stopped first, none of them can start another while the list is worked through.
  signal_all(descendants(but), SIGSTOP);
  signal_all(descendants(but), SIGKILL);
}

bool kill_descendants(Duration limit, std::span<const pid_t> but) {
  const auto some_are_left = [but] { return has_children() && (but.empty() || !descendants(but).empty()); };
  const TimePoint end = std::chrono::steady_clock::now() + limit;
  while (some_are_left()) {
    kill_descendants_once(but);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (!some_are_left()) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}

}  // namespace torchup
