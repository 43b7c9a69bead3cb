#pragma once

#include <unistd.h>

#include <cerrno>
#include <string_view>

namespace torchup {

/// Writes all of it to a file that blocks. Returns the errno that ended it, or 0; `bytes` keeps what is left.
inline int write_all(int fd, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace torchup
