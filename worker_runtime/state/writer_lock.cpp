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
#include <string>
#include <string_view>
#include <thread>
#include <torchup/error.hpp>
#include <utility>

namespace torchup {

namespace {

constexpr const char* lock_name = "writer.lock";

std::string this_writer() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

// Others who may write in the folder may have put there what leads to somebody's file, or a pipe that nobody serves.
constexpr int with_care = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

/// What the holder wrote; it may have died before it did.
std::string holder_of(const std::filesystem::path& folder) {
  std::array<char, 512> text{};
  const int fd = ::open((folder / lock_name).c_str(), O_RDONLY | with_care);
  const ssize_t size = fd < 0 ? 0 : ::pread(fd, text.data(), text.size(), 0);
  if (fd >= 0) ::close(fd);
  const std::string_view all{text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
  const std::string holder{all.substr(0, all.find('\n'))};
  return holder.empty() ? "another process" : holder;
}

struct LockFile {
  int fd;
  bool for_writing;
};

/// One that is another user's is opened as far as it lets us: most file systems lock whatever is open. No descriptor:
/// a file server has a lease on it, and is asked just now to give it back.
LockFile open_file(const std::filesystem::path& path) {
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | with_care, 0666);
  // In a sticky folder the kernel refuses O_CREAT for what is there and another user's (fs.protected_regular).
  if (fd < 0 && errno == EACCES) fd = ::open(path.c_str(), O_RDWR | with_care);
  const bool for_writing = fd >= 0;
  if (fd < 0 && errno == EACCES) fd = ::open(path.c_str(), O_RDONLY | with_care);
  const int error = fd < 0 ? errno : 0;
  struct stat status {};
  const bool strange = fd < 0 ? error == ELOOP || error == ENXIO
                              : ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_nlink > 1;
  if (strange) {
    if (fd >= 0) ::close(fd);
    throw Error{
        fmt::format("lock {}: it is not a regular file of this one name: somebody has put it there, for torchup "
                    "makes none such. Remove it, or take another folder",
                    path.string())};
  }
  if (fd >= 0 || error == EWOULDBLOCK) return {fd, for_writing};
  throw Error{fmt::format("open {}: {}{}", path.string(), std::strerror(error),
                          error == EACCES ? ". It says whether another job writes checkpoints there: have its owner "
                                            "make it readable and writable, or take another folder"
                                          : "")};
}

/// Whoever may write in the folder is to be able to lock the file, whatever our umask: best effort, as the owner alone
/// can see to it. Root's in a user's folder becomes the user's.
void open_to_the_folders_writers(int fd, const std::filesystem::path& folder) {
  struct stat file {
  }, around{};
  if (::fstat(fd, &file) != 0 || file.st_uid != ::geteuid() || ::stat(folder.c_str(), &around) != 0) return;
  mode_t may_write = around.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH);
  const bool is_the_folders = file.st_uid == around.st_uid && file.st_gid == around.st_gid;
  if (!is_the_folders && ::fchown(fd, around.st_uid, around.st_gid) != 0 && file.st_gid != around.st_gid &&
      ::fchown(fd, static_cast<uid_t>(-1), around.st_gid) != 0)
    may_write &= ~static_cast<mode_t>(S_IWGRP);                              // its group is another one
  const mode_t wanted = (file.st_mode & 0777) | may_write | may_write << 1;  // and read
  if (wanted != (file.st_mode & 0777)) static_cast<void>(::fchmod(fd, wanted) == 0);
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
    : fd_{fd}, process_{::getpid()}, why_unguarded_{std::move(why_unguarded)} {}

struct WriterLock::Attempt {
  std::unique_ptr<WriterLock> lock;  ///< null: it is held
  int error = 0;                     ///< by which that was seen
};

WriterLock::Attempt WriterLock::attempt(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / lock_name;
  const LockFile file = open_file(path);
  if (file.fd < 0) return {nullptr, EWOULDBLOCK};
  open_to_the_folders_writers(file.fd, folder);
  int error = 0;
  while (::flock(file.fd, LOCK_EX | LOCK_NB) != 0 && (error = errno) == EINTR) error = 0;
  std::string why_unguarded;
  if (error != 0) {
    const LockFailure failure = lock_failure(error, file.for_writing);
    if (failure != LockFailure::no_locks) ::close(file.fd);
    if (failure == LockFailure::held) return {nullptr, error};
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
  std::unique_ptr<WriterLock> lock{new WriterLock{file.fd, std::move(why_unguarded)}};
  if (!lock->guards(folder)) return {nullptr, EWOULDBLOCK};  // removed since we opened it: there may be a new one
  // For people alone: that it cannot be written is no harm.
  const std::string writer = this_writer() + '\n';
  if (::ftruncate(file.fd, 0) == 0) static_cast<void>(::pwrite(file.fd, writer.data(), writer.size(), 0) < 0);
  return {std::move(lock)};
}

std::unique_ptr<WriterLock> WriterLock::try_take(const std::filesystem::path& folder) { return attempt(folder).lock; }

std::unique_ptr<WriterLock> WriterLock::take(const std::filesystem::path& folder, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds pause{100};
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    auto [lock, error] = attempt(folder);
    if (lock) return std::move(lock);
    if (std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(pause);
      continue;
    }
    // EACCES may also be the word of a security module that forbids it.
    throw Error{fmt::format("the checkpoint folder {} has a writer already, {}{}: end that one, or take another folder",
                            folder.string(), holder_of(folder),
                            error == EWOULDBLOCK ? "" : fmt::format(" (flock: {})", std::strerror(error)))};
  }
}

bool WriterLock::guards(const std::filesystem::path& folder) const {
  struct stat ours {
  }, there{};
  if (::lstat((folder / lock_name).c_str(), &there) != 0) return errno != ENOENT;
  return ::fstat(fd_, &ours) == 0 && ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

WriterLock::~WriterLock() {
  if (process_ == ::getpid()) ::flock(fd_, LOCK_UN);  // what was forked from us may have it open for longer
  ::close(fd_);
}

}  // namespace torchup
