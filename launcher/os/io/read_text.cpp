#include "launcher/os/io/read_text.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

std::string read_text(const std::string& path, std::size_t bytes_max) {
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY)};
  std::string text;
  std::array<char, 16 * 1024> part;
  while (file && text.size() < bytes_max) {
    const ssize_t count = ::read(file.get(), part.data(), std::min(part.size(), bytes_max - text.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace torchup
