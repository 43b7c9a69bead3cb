#pragma once

#include <chrono>
#include <filesystem>
#include <memory>

namespace torchup {

/// The right to write in a checkpoint folder, which one writer has at a time.
///
/// A lock of the kernel's (flock) on FOLDER/writer.lock: it goes with the process, however that ends (a child that was
/// forked without exec keeps it), and on NFS it holds among machines. The file says who has it, and stays.
///
/// Where the file system knows no locks (Lustre mounted without them, some of those in user space) everybody has the
/// right, and two writers are not told from one.
class WriterLock {
 public:
  /// Null while another writer has the right. Throws Error when the file cannot be opened.
  static std::unique_ptr<WriterLock> try_take(const std::filesystem::path& folder);
  /// Waits for another writer up to `patience`, then throws Error that names folder and holder.
  static std::unique_ptr<WriterLock> take(const std::filesystem::path& folder, std::chrono::milliseconds patience);

  explicit WriterLock(int fd) : fd_{fd} {}
  ~WriterLock();
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  int fd_;
};

}  // namespace torchup
