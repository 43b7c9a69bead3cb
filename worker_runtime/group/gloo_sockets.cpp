#include "worker_runtime/group/gloo_sockets.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

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

/// What that epoll instance waits for.
std::vector<int> watched_by(int epoll) {
  std::vector<int> watched;
  std::ifstream file{fmt::format("/proc/self/fdinfo/{}", epoll)};
  for (std::string line; std::getline(file, line);) {
    std::string_view text = line;
    if (!text.starts_with("tfd:")) continue;
    text.remove_prefix(4);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    int descriptor = -1;
    if (std::from_chars(text.data(), text.data() + text.size(), descriptor).ec == std::errc{}) {
      watched.push_back(descriptor);
    }
  }
  return watched;
}

bool listens(int descriptor) {
  int answer = 0;
  socklen_t size = sizeof answer;
  return ::getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &answer, &size) == 0 && answer != 0;
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

void GlooSockets::made() {
  std::set<int> threads = gloo_threads();
  std::erase_if(threads, [&](int thread) { return threads_before_.contains(thread); });
  // A thread that has just begun, or handles something, is in no system call; it will be.
  constexpr int looks_max = 100;
  for (int look = 0; look < looks_max && !threads.empty() && !epoll_; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::milliseconds{1});
    epoll_ = waits_for(*threads.begin());
  }
  if (epoll_) return;
  // Versions of gloo that name no thread: an instance that came with the group, and waits for newcomers.
  std::set<int> instances = epoll_instances();
  std::erase_if(instances, [&](int each) {
    const std::vector<int> watched = watched_by(each);
    return epolls_before_.contains(each) || std::find_if(watched.begin(), watched.end(), listens) == watched.end();
  });
  if (instances.size() == 1) epoll_ = *instances.begin();
}

int GlooSockets::shut_down() const {
  int count = 0;
  if (!epoll_) return count;
  for (const int descriptor : watched_by(*epoll_)) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    if (listens(descriptor) || ::getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (::shutdown(descriptor, SHUT_RDWR) == 0) ++count;
  }
  return count;
}

}  // namespace torchup
