#include "launcher/os/io/regular_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

Result<std::string> read_regular_file(const std::string& path, std::size_t bytes_max) {
  // O_NONBLOCK: a FIFO is opened whether or not somebody writes to it.
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)};
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return system_error(path);
  if (!S_ISREG(status.st_mode)) return fail(errc::bad_value, path + " is no regular file");
  std::string content;
  std::array<char, 16 * 1024> part{};
  while (content.size() <= bytes_max) {
    const ssize_t count = ::read(file.get(), part.data(), part.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(path);
    if (count == 0) break;
    content.append(part.data(), static_cast<std::size_t>(count));
  }
  return content;
}

}  // namespace torchup
