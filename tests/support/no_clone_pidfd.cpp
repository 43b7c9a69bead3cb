// Loaded into a program (LD_PRELOAD), makes its clone pass over CLONE_PIDFD, as Linux before 5.2 does.

#include <sched.h>

#include <cstdarg>

extern "C" int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...);

extern "C" int clone(int (*run)(void*), void* stack, int flags, void* argument, ...) {
  constexpr int wants_pidfd = 0x1000;
  return __clone(run, stack, flags & ~wants_pidfd, argument, nullptr, nullptr, nullptr);
}
