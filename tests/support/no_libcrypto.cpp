// Loaded into a program (LD_PRELOAD), makes libcrypto missing: as on a machine that has none.

#include <dlfcn.h>

#include <cstring>

extern "C" void* dlopen(const char* path, int flags) {
  using Open = void* (*)(const char*, int);
  static const auto real = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "dlopen"));
  if (path != nullptr && std::strstr(path, "libcrypto") != nullptr) path = "/missing/libcrypto.so.3";
  return real(path, flags);
}
