#include "worker_runtime/state/writer_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <torchup/error.hpp>
#include <utility>
#include <vector>

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

struct LockFile {
  int fd;
  bool for_writing;
};

/// One that is another user's is opened as far as it lets us: most file systems lock whatever is open.
LockFile open_file(const std::filesystem::path& path) {
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  // In a sticky folder the kernel refuses O_CREAT for what is there and another user's (fs.protected_regular).
  if (fd < 0 && errno == EACCES) fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) return {fd, true};
  if (errno == EACCES) fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) return {fd, false};
  const int error = errno;
  throw Error{fmt::format("open {}: {}{}", path.string(), std::strerror(error),
                          error == EACCES ? ". It says whether another job writes checkpoints there: have its owner "
                                            "make it readable and writable, or take another folder"
                                          : "")};
}

/// Whoever may write in the folder is to be able to lock the file, whatever our umask: best effort, as the owner alone
/// can see to it.
void open_to_the_folders_writers(int fd, const std::filesystem::path& folder) {
  struct stat file {
  }, around{};
  if (::fstat(fd, &file) != 0 || file.st_uid != ::geteuid() || ::stat(folder.c_str(), &around) != 0) return;
  if (file.st_gid != around.st_gid) static_cast<void>(::fchown(fd, static_cast<uid_t>(-1), around.st_gid) == 0);
  const mode_t may_write = around.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH);
  const mode_t wanted = (file.st_mode & 0777) | may_write | may_write << 1;  // and read
  if (wanted != (file.st_mode & 0777)) static_cast<void>(::fchmod(fd, wanted) == 0);
}

/// The lock is the process's, so the process knows of it in one place.
struct Taken {
  std::mutex mutex;
  std::vector<std::weak_ptr<WriterLock>> locks;
};
Taken& taken() {
  static Taken all;
  return all;
}

dev_t device_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_dev : 0;
}
ino_t inode_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? status.st_ino : 0;
}

}  // namespace

LockFailure lock_failure(int error, bool opened_for_writing) {
  switch (error) {
    case EWOULDBLOCK:
    case EACCES:  // what fcntl may say, by which some file systems do it
      return LockFailure::held;
    case ENOSYS:
    case EOPNOTSUPP:
    case ENOLCK:  // no lock service
    case EINVAL:
      return LockFailure::no_locks;
    case EBADF:
      return opened_for_writing ? LockFailure::failed : LockFailure::unwritable;
    default:
      return LockFailure::failed;
  }
}

WriterLock::WriterLock(int fd, std::string why_unguarded)
    : fd_{fd}, device_{device_of(fd)}, inode_{inode_of(fd)}, process_{::getpid()}, why_unguarded_{
                                                                                       std::move(why_unguarded)} {}

/// That of another writer here; nothing: there is none. Not that of a process from which this one was forked.
std::shared_ptr<WriterLock> WriterLock::of_this_process(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return nullptr;
  for (const auto& each : taken().locks) {
    auto lock = each.lock();
    if (lock && lock->fd_ >= 0 && lock->process_ == ::getpid() && lock->device_ == status.st_dev &&
        lock->inode_ == status.st_ino)
      return lock;
  }
  return nullptr;
}

std::shared_ptr<WriterLock> WriterLock::try_take(const std::filesystem::path& folder) {
  const std::lock_guard guard{taken().mutex};
  const std::filesystem::path path = folder / lock_name;
  if (auto lock = of_this_process(path)) return lock;
  const LockFile file = open_file(path);
  open_to_the_folders_writers(file.fd, folder);
  int error = 0;
  while (::flock(file.fd, LOCK_EX | LOCK_NB) != 0 && (error = errno) == EINTR) error = 0;
  std::string why_unguarded;
  if (error != 0) {
    const LockFailure failure = lock_failure(error, file.for_writing);
    if (failure != LockFailure::no_locks) ::close(file.fd);
    if (failure == LockFailure::held) return nullptr;
    if (failure == LockFailure::unwritable)
      throw Error{fmt::format(
          "lock {}: it is another user's and cannot be written, and here only what can be written can be locked: have "
          "its owner make it writable (chmod a+rw), or take another folder",
          path.string())};
    if (failure == LockFailure::failed) throw Error{fmt::format("lock {}: {}", path.string(), std::strerror(error))};
    why_unguarded = fmt::format(
        "the file system of the checkpoint folder {} has no locks ({}): nobody notices when two jobs write there, so "
        "give each job a folder of its own",
        folder.string(), std::strerror(error));
  }
  std::shared_ptr<WriterLock> lock{new WriterLock{file.fd, std::move(why_unguarded)}};
  std::erase_if(taken().locks, [](const auto& each) { return each.expired(); });
  taken().locks.push_back(lock);
  // For people alone: that it cannot be written is no harm.
  const std::string writer = this_writer() + '\n';
  if (::ftruncate(file.fd, 0) == 0) static_cast<void>(::pwrite(file.fd, writer.data(), writer.size(), 0) < 0);
  return lock;
}

std::shared_ptr<WriterLock> WriterLock::take(const std::filesystem::path& folder, std::chrono::milliseconds patience) {
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

void WriterLock::let_go() {
  const std::lock_guard writing{turn_};
  const std::lock_guard guard{taken().mutex};
  close_file();
}

bool WriterLock::is_let_go() const {
  const std::lock_guard guard{taken().mutex};
  return fd_ < 0;
}

void WriterLock::close_file() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

WriterLock::~WriterLock() { close_file(); }

}  // namespace torchup
