#include "worker_runtime/group/gloo_sockets.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

namespace fs = std::filesystem;

/// The names in a folder of /proc that are numbers.
std::vector<int> numbers_in(const char* folder) {
  std::vector<int> numbers;
  std::error_code error;
  for (fs::directory_iterator at{folder, error}, end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    int number = 0;
    const auto [stop, failed] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (failed == std::errc{} && stop == name.data() + name.size()) numbers.push_back(number);
  }
  return numbers;
}

/// Threads in which gloo waits for a device's connections.
std::set<int> gloo_threads() {
  std::set<int> threads;
  for (const int thread : numbers_in("/proc/self/task")) {
    std::ifstream file{fmt::format("/proc/self/task/{}/comm", thread)};
    std::string name;
    if (std::getline(file, name) && name == "gloo_tcp_loop") threads.insert(thread);
  }
  return threads;
}

std::set<int> epoll_instances() {
  std::set<int> instances;
  for (const int descriptor : numbers_in("/proc/self/fd")) {
    std::error_code error;
    const fs::path target = fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), error);
    if (!error && target == "anon_inode:[eventpoll]") instances.insert(descriptor);
  }
  return instances;
}

/// A descriptor of our own for what an epoll instance waits for: the number alone may have been used again.
struct Watched {
  UniqueFd socket;

  [[nodiscard]] bool listens() const {
    int answer = 0;
    socklen_t size = sizeof answer;
    return ::getsockopt(socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &answer, &size) == 0 && answer != 0;
  }
  [[nodiscard]] bool is_connected() const {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    return ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &size) == 0;
  }
};

/// What that epoll instance waits for, from lines "tfd: 9 events: 19 data: … pos:0 ino:1f2e sdev:8".
std::vector<Watched> watched_by(int epoll) {
  std::vector<Watched> watched;
  std::ifstream file{fmt::format("/proc/self/fdinfo/{}", epoll)};
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find("ino:");
    if (!line.starts_with("tfd:") || at == std::string::npos) continue;
    const int descriptor = std::atoi(line.c_str() + 4);
    const ino_t inode = std::strtoull(line.c_str() + at + 4, nullptr, 16);
    UniqueFd copy{::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)};
    struct stat status {};
    if (copy && ::fstat(copy.get(), &status) == 0 && status.st_ino == inode) watched.push_back({std::move(copy)});
  }
  return watched;
}

/// The epoll instance that a thread waits for now: the first argument of the system call in which it is.
std::optional<int> waits_for(int thread) {
  std::ifstream file{fmt::format("/proc/self/task/{}/syscall", thread)};
  long number = -1;
  unsigned long first = 0;
  if (!(file >> number) || !(file >> std::hex >> first)) return {};
  constexpr auto waits = std::to_array<long>({
#ifdef SYS_epoll_wait
      SYS_epoll_wait,
#endif
      SYS_epoll_pwait});
  for (const long each : waits) {
    if (number == each) return static_cast<int>(first);
  }
  return {};
}

}  // namespace

GlooSockets::GlooSockets() : threads_before_{gloo_threads()}, epolls_before_{epoll_instances()} {}

std::set<int> GlooSockets::look(Looking looking) const {
  std::set<int> threads = gloo_threads();
  std::erase_if(threads, [this](int each) { return threads_before_.contains(each); });
  std::set<int> epolls;
  for (const int thread : threads) {
    if (const auto epoll = waits_for(thread)) epolls.insert(*epoll);
  }
  if (epolls.size() == threads.size() || looking == Looking::part) {
    if (!epolls.empty()) return epolls;
  }
  if (!threads.empty() && looking != Looking::last) return {};
  // Versions of gloo that name no thread, or a kernel that tells of none: instances that came with the group, and wait
  // for newcomers.
  std::set<int> instances = epoll_instances();
  std::erase_if(instances, [&](int each) {
    const auto watched = watched_by(each);
    return epolls_before_.contains(each) ||
           std::ranges::none_of(watched, [](const auto& one) { return one.listens(); });
  });
  return instances.size() == std::max<std::size_t>(threads.size(), 1) ? instances : std::set<int>{};
}

void GlooSockets::made() {
  // A thread that has just begun, or handles something, is in no system call; it will be.
  constexpr int looks_max = 100;
  std::set<int> found = look(Looking::all);
  for (int looks = 1; found.empty() && looks < looks_max; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
    found = look(looks + 1 < looks_max ? Looking::all : Looking::last);
  }
  const std::lock_guard lock{mutex_};
  made_ = true;
  epolls_ = std::move(found);
}

bool GlooSockets::found() const {
  const std::lock_guard lock{mutex_};
  return !epolls_.empty();
}

int GlooSockets::shut_down() const {
  const std::lock_guard lock{mutex_};
  int count = 0;
  for (const int epoll : made_ ? epolls_ : look(Looking::part)) {
    for (const Watched& one : watched_by(epoll)) {
      if (!one.listens() && one.is_connected() && ::shutdown(one.socket.get(), SHUT_RDWR) == 0) ++count;
    }
  }
  return count;
}

}  // namespace torchup
