#pragma once

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace torchup {

/// Writes all of it, waiting as long as it takes, also where somebody who shares the open file has made it
/// non-blocking. Returns the errno that ended it, or 0; `bytes` keeps what is left.
inline int write_all(int fd, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd waiting{fd, POLLOUT, 0};
      ::poll(&waiting, 1, -1);
      continue;
    }
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace torchup
