#include "worker_runtime/state/writer_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <torchup/error.hpp>

namespace torchup {

namespace {

constexpr const char* lock_name = "writer.lock";

std::string this_writer() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

/// What the holder wrote; it may have died before it did.
std::string holder_of(const std::filesystem::path& folder) {
  std::string holder;
  std::getline(std::ifstream{folder / lock_name}, holder);
  return holder.empty() ? "another process" : holder;
}

}  // namespace

std::unique_ptr<WriterLock> WriterLock::try_take(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / lock_name;
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0 && errno == EACCES) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);  // another user's, in a shared folder
  if (fd < 0) throw Error{"open " + path.string() + ": " + std::strerror(errno)};
  auto lock = std::make_unique<WriterLock>(fd);
  int taken = -1;
  do taken = ::flock(fd, LOCK_EX | LOCK_NB);
  while (taken != 0 && errno == EINTR);
  if (taken != 0 && (errno == EWOULDBLOCK || errno == EACCES)) return nullptr;
  if (taken != 0) return lock;  // there are no locks here
  // For people alone: that it cannot be written is no harm.
  const std::string writer = this_writer() + '\n';
  if (::ftruncate(fd, 0) == 0) static_cast<void>(::pwrite(fd, writer.data(), writer.size(), 0) < 0);
  return lock;
}

std::unique_ptr<WriterLock> WriterLock::take(const std::filesystem::path& folder, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds pause{100};
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    if (auto lock = try_take(folder)) return lock;
    if (std::chrono::steady_clock::now() >= deadline) break;
    std::this_thread::sleep_for(pause);
  }
  throw Error{fmt::format("the checkpoint folder {} has a writer already, {}: end that one, or take another folder",
                          folder.string(), holder_of(folder))};
}

WriterLock::~WriterLock() { ::close(fd_); }

}  // namespace torchup
