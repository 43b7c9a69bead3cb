#include "worker_runtime/state/file_writer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <torchup/error.hpp>

#include "worker_runtime/state/crc32.hpp"

namespace torchup {

FileWriter::FileWriter(std::filesystem::path path)
    : path_{std::move(path)}, temporary_{path_.string() + ".tmp-" + std::to_string(::getpid())} {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("open");
}

FileWriter::~FileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void FileWriter::write(const void* data, std::size_t size) {
  // Pieces small enough to be in the cache still when they are written.
  constexpr std::size_t piece = std::size_t{256} << 10;
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(fd_, bytes, std::min(size, piece));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("write");
    const auto count = static_cast<std::size_t>(done);
    written_.crc32 = crc32(written_.crc32, bytes, count);
    written_.bytes += count;
    bytes += count;
    size -= count;
  }
}

WrittenFile FileWriter::commit() {
  if (::fsync(fd_) != 0) fail("fsync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename");
  ::close(fd_);
  fd_ = -1;
  sync_folder(path_.parent_path());
  return written_;
}

void FileWriter::fail(const char* what) const {
  throw Error{std::string{what} + " " + temporary_.string() + ": " + std::strerror(errno)};
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && (::fsync(fd) == 0 || errno == EINVAL);  // EINVAL: a file system that cannot
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!synced) throw Error{"fsync of the folder " + folder.string() + ": " + std::strerror(error)};
}

}  // namespace torchup
