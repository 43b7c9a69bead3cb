// For LD_PRELOAD: a disk that cannot read the files whose path contains $TORCHUP_TEST_UNREADABLE, and on which flock,
// or to rename a folder, fails with the error of the number $TORCHUP_TEST_FLOCK_ERROR or $TORCHUP_TEST_RENAME_ERROR.
#include <dlfcn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
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

extern "C" int flock(int descriptor, int operation) {
  static const auto real = reinterpret_cast<int (*)(int, int)>(::dlsym(RTLD_NEXT, "flock"));
  if (const char* const error = std::getenv("TORCHUP_TEST_FLOCK_ERROR")) {
    errno = std::atoi(error);
    return -1;
  }
  return real(descriptor, operation);
}

extern "C" int rename(const char* from, const char* to) {
  static const auto real = reinterpret_cast<int (*)(const char*, const char*)>(::dlsym(RTLD_NEXT, "rename"));
  struct stat status {};
  const char* const error = std::getenv("TORCHUP_TEST_RENAME_ERROR");
  if (error && ::stat(from, &status) == 0 && S_ISDIR(status.st_mode)) {
    errno = std::atoi(error);
    return -1;
  }
  return real(from, to);
}
