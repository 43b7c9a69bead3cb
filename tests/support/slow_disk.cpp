// Loaded into a program (LD_PRELOAD), makes it wait whenever it opens a file by the name in SLOW_DISK_NAME, or the
// ".NAME.…" that is to take its place: until the file SLOW_DISK_FREE exists, as a disk would that does not answer.

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace {

void wait_for_disk(const char* path) {
  const char* name = std::getenv("SLOW_DISK_NAME");
  const char* free = std::getenv("SLOW_DISK_FREE");
  if (name == nullptr || free == nullptr) return;
  const char* last = std::strrchr(path, '/');
  const std::string_view opened = last != nullptr ? last + 1 : path;
  if (opened != name && !opened.starts_with("." + std::string{name} + ".")) return;
  while (::access(free, F_OK) != 0) ::usleep(10'000);
}

mode_t mode_of(int flags, va_list& arguments) { return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : mode_t{0}; }

}  // namespace

extern "C" int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  using OpenAt = int (*)(int, const char*, int, ...);
  static const auto real = reinterpret_cast<OpenAt>(::dlsym(RTLD_NEXT, "openat"));
  wait_for_disk(path);
  return real(folder, path, flags, mode);
}

extern "C" int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  using Open = int (*)(const char*, int, ...);
  static const auto real = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "open"));
  wait_for_disk(path);
  return real(path, flags, mode);
}
