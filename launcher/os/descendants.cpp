#include "launcher/os/descendants.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <thread>

#include "rendezvous/net/unique_fd.hpp"

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

/// State and parent of a process, from /proc/<pid>/stat. False when it is gone.
bool read_process(pid_t pid, Process& process) {
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const UniqueFd file{::open(path, O_RDONLY | O_CLOEXEC)};
  if (!file) return false;
  char text[512];
  const ssize_t length = ::read(file.get(), text, sizeof text);
  if (length <= 0) return false;
  // The name may hold anything, blanks and brackets too; the last bracket ends it: ") S 1234 ".
  const std::string_view line{text, static_cast<std::size_t>(length)};
  const auto bracket = line.rfind(')');
  if (bracket == std::string_view::npos || bracket + 4 >= line.size()) return false;
  process.pid = pid;
  process.state = line[bracket + 2];
  return std::from_chars(&line[bracket + 4], line.data() + line.size(), process.parent).ec == std::errc{};
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

void signal_all(const std::vector<pid_t>& pids, int number) {
  for (const pid_t pid : pids) ::kill(pid, number);
}

}  // namespace

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

std::vector<pid_t> descendants() {
  const auto processes = all_processes();
  std::vector<pid_t> found{::getpid()};
  for (std::size_t next = 0; next < found.size(); ++next) {
    const pid_t parent = found[next];
    for (const Process& process : processes) {
      if (process.parent == parent) found.push_back(process.pid);
    }
  }
  found.erase(found.begin());
  return found;
}

char state_letter(pid_t pid) {
  Process process{};
  return read_process(pid, process) ? process.state : '?';
}

bool has_children() {
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 || errno != ECHILD;
}

void reap_orphans() {
  while (::waitpid(-1, nullptr, WNOHANG | __WNOTHREAD) > 0) {
  }
}

void kill_descendants_once() {
  // Stopped first, none of them can start another while the list is worked through.
  signal_all(descendants(), SIGSTOP);
  signal_all(descendants(), SIGKILL);
}

bool kill_descendants(Duration limit) {
  const TimePoint end = std::chrono::steady_clock::now() + limit;
  while (has_children()) {
    kill_descendants_once();
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (!has_children()) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}

}  // namespace torchup
