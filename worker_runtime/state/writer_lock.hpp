#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

namespace torchup {

/// The right to write in a checkpoint folder, which one process has at a time.
///
/// A lock of the kernel's (flock) on FOLDER/writer.lock: it goes with the process, however that ends (a child that was
/// forked without exec keeps it). The file says who has it, and stays. Who may write in the folder may write the file,
/// whatever the maker's umask: NFS locks only for those. All writers of a process share one lock and write by turns.
///
/// Limits: where the file system has no locks (Lustre mounted without them, NFS without a lock service, some file
/// systems in user space) everybody has the right, and two jobs are not told from one: why_unguarded() says so. NFS
/// mounted with nolock or local_lock, and Lustre with localflock, lock among the processes of one machine only, which
/// cannot be seen from here.
class WriterLock {
 public:
  /// Null while another process has the right. Throws Error, which names the file, when that cannot be found out: the
  /// file cannot be opened, or not be locked for a reason that is no lack of locks.
  static std::shared_ptr<WriterLock> try_take(const std::filesystem::path& folder);
  /// Waits for another process up to `patience`, then throws Error that names folder and holder.
  static std::shared_ptr<WriterLock> take(const std::filesystem::path& folder, std::chrono::milliseconds patience);

  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

  /// Why this guards nothing, for people; empty: it does.
  [[nodiscard]] const std::string& why_unguarded() const { return why_unguarded_; }
  /// Held by who writes just now.
  [[nodiscard]] std::mutex& turn() { return turn_; }
  /// For all writers of this process, once nobody writes: who goes on writing takes it anew.
  void let_go();
  [[nodiscard]] bool is_let_go() const;

 private:
  WriterLock(int fd, std::string why_unguarded);
  static std::shared_ptr<WriterLock> of_this_process(const std::filesystem::path& path);
  void close_file();

  int fd_;  ///< -1: let go. Guarded by the list of this process's locks
  const dev_t device_;
  const ino_t inode_;
  const pid_t process_;
  const std::string why_unguarded_;
  std::mutex turn_;
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
