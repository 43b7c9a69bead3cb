// Loaded into a program (LD_PRELOAD), makes the kernel's release what KERNEL_RELEASE says.

#include <dlfcn.h>
#include <sys/utsname.h>

#include <cstdlib>
#include <cstring>

extern "C" int uname(utsname* system) {
  using Ask = int (*)(utsname*);
  static const auto real = reinterpret_cast<Ask>(::dlsym(RTLD_NEXT, "uname"));
  const int result = real(system);
  if (const char* const release = std::getenv("KERNEL_RELEASE")) {
    std::strncpy(system->release, release, sizeof system->release - 1);
  }
  return result;
}
