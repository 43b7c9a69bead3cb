#include "launcher/os/evidence.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>

#include "rendezvous/net/unique_fd.hpp"

namespace torchup {

Result<std::optional<std::string>> read_error_file(const std::string& path) {
  const auto failed = [&] { return Error{{errno, boost::system::system_category()}, path}; };
  // Not blocking, so that a FIFO in its place cannot hold us up.
  const UniqueFd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
  if (!file && errno == ENOENT) return std::optional<std::string>{};
  if (!file) return failed();
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return failed();
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) {
    return fail(errc::refused, path + ": not a regular file of ours");
  }
  std::string bytes;
  std::array<char, 16 * 1024> buffer;
  while (true) {
    const ssize_t length = ::read(file.get(), buffer.data(), buffer.size());
    if (length < 0 && errno != EINTR) return failed();
    if (length == 0) return std::optional{std::move(bytes)};
    if (length > 0) bytes.append(buffer.data(), static_cast<std::size_t>(length));
    if (bytes.size() > error_file_bytes_max) {
      return fail(errc::limit_exceeded, path + ": an error file has at most 1 MiB");
    }
  }
}

std::string local_time_text(std::int64_t utc_us) {
  const std::time_t seconds = utc_us / 1'000'000;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d_%H:%M:%S", &parts);
  return text.data();
}

}  // namespace torchup
