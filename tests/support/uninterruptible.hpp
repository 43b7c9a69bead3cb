#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

namespace torchup::test {

/// Has the calling thread sleep uninterruptibly (state D) until its child has ended, which calls `begin` and then only
/// waits for signals. What vfork does, but for the memory: ThreadSanitizer would make that a fork.
template <class Begin>
void sleep_uninterruptibly(Begin begin) {
  if (::syscall(SYS_clone, CLONE_VFORK | SIGCHLD, nullptr, nullptr, nullptr, nullptr) != 0) return;
  begin();
  while (true) ::pause();
}

}  // namespace torchup::test
