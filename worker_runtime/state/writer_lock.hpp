#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

namespace torchup {

/// The right to write in a checkpoint folder, which one process has at a time.
///
/// A lock of the kernel's (flock) on FOLDER/writer.lock: it goes with this object, or with the process, however that
/// ends (a child that was forked without exec keeps it then). The file says who has it, and stays. Who may write in the
/// folder may write the file, whatever the maker's umask: NFS locks only for those. It is a regular file with this one
/// name: what others may have put there instead is not touched.
///
/// Limits: where the file system has no locks (Lustre mounted without them, NFS without a lock service, some file
/// systems in user space) everybody has the right, and two jobs are not told from one: why_unguarded() says so. NFS
/// mounted with nolock or local_lock, and Lustre with localflock, lock among the processes of one machine only, which
/// cannot be seen from here.
class WriterLock {
 public:
  /// Null while somebody else has the right: another process, or another object of this one. Throws Error, which names
  /// the file, when that cannot be found out: the file cannot be opened, is no regular one, or cannot be locked for a
  /// reason that is no lack of locks.
  static std::unique_ptr<WriterLock> try_take(const std::filesystem::path& folder);
  /// Waits for the holder up to `patience`, then throws Error that names folder and holder.
  static std::unique_ptr<WriterLock> take(const std::filesystem::path& folder, std::chrono::milliseconds patience);

  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  /// Whether its file is still the folder's: where it was removed another process may have locked a new one.
  [[nodiscard]] bool guards(const std::filesystem::path& folder) const;
  /// Why this guards nothing, for people; empty: it does.
  [[nodiscard]] const std::string& why_unguarded() const { return why_unguarded_; }

 private:
  WriterLock(int fd, std::string why_unguarded);
  struct Attempt;
  static Attempt attempt(const std::filesystem::path& folder);

  const int fd_;
  const pid_t process_;
  const std::string why_unguarded_;
};

/// What it means that flock failed.
enum class LockFailure {
  held,        ///< another one has the lock
  no_locks,    ///< the file system has none
  unwritable,  ///< it locks only what was opened for writing, as NFS does, and this was not
  failed,      ///< nobody knows who has it
};
[[nodiscard]] LockFailure lock_failure(int error, bool opened_for_writing);

}  // namespace torchup
