// For LD_PRELOAD: a disk that cannot read the files whose path contains $TORCHUP_TEST_UNREADABLE.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <string_view>

extern "C" ssize_t read(int descriptor, void* data, size_t size) {
  static const auto real = reinterpret_cast<ssize_t (*)(int, void*, size_t)>(::dlsym(RTLD_NEXT, "read"));
  if (const char* const unreadable = std::getenv("TORCHUP_TEST_UNREADABLE")) {
    std::array<char, 4096> path;
    const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
    const ssize_t length = ::readlink(link.c_str(), path.data(), path.size());
    if (length > 0 &&
        std::string_view{path.data(), static_cast<std::size_t>(length)}.find(unreadable) != std::string_view::npos) {
      errno = EIO;
      return -1;
    }
  }
  return real(descriptor, data, size);
}
