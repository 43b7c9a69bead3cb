#include "worker_runtime/state/file_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "worker_runtime/state/crc32.hpp"

namespace torchup {

FileReader::FileReader(std::filesystem::path path) : path_{std::move(path)} {
  // Not waiting for anybody to write into what turns out to be a pipe. Of a regular file it changes nothing.
  fd_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  struct stat status {};
  // A file server (Samba) has a lease on it, and gives it back to who waits.
  if (fd_ < 0 && errno == EWOULDBLOCK && ::stat(path_.c_str(), &status) == 0 && S_ISREG(status.st_mode))
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail("open");
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    throw Error{path_.string() + " is no regular file"};
  }
  bytes_ = static_cast<std::uint64_t>(status.st_size);
}

FileReader::~FileReader() { ::close(fd_); }

void FileReader::read(void* data, std::size_t size) {
  constexpr std::size_t piece = std::size_t{256} << 10;  // still in the cache when the checksum is taken
  char* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t done = ::read(fd_, bytes, std::min(size, piece));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("read");
    if (done == 0) throw Error{path_.string() + " ends too early"};
    crc32_ = torchup::crc32(crc32_, bytes, static_cast<std::size_t>(done));
    bytes += done;
    size -= static_cast<std::size_t>(done);
  }
}

void FileReader::read_at(std::uint64_t offset, void* data, std::size_t size) {
  char* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t done = ::pread(fd_, bytes, size, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("read");
    if (done == 0) throw Error{path_.string() + " ends too early"};
    bytes += done;
    offset += static_cast<std::uint64_t>(done);
    size -= static_cast<std::size_t>(done);
  }
}

void FileReader::fail(const char* what) const {
  throw NotRead{std::string{what} + " " + path_.string() + ": " + std::strerror(errno)};
}

}  // namespace torchup
