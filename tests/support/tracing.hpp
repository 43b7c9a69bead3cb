#pragma once

#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "launcher/os/diagnosis/libdw.hpp"

/// What a test needs of its machine to see into other processes. Containers, Yama and seccomp may withhold it.
namespace torchup::test {

/// Whether this process may trace its own child.
inline bool may_trace() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) ::pause();
  }
  const bool may = pid > 0 && ::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0;
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, __WALL);
  return may;
}

/// Why no native stacks can be read here; empty: they can.
inline std::string native_stacks_missing() {
  const dw::Library library;
  if (!library.problem.empty()) return library.problem;
  return may_trace() ? "" : "nobody may trace other processes here";
}

/// Of a case that has more to show: what needs them is left out, which is said.
inline bool has_native_stacks() {
  const std::string missing = native_stacks_missing();
  if (!missing.empty()) WARN("native stacks are not tried: " << missing);
  return missing.empty();
}

/// Ends the test as skipped where the machine lacks that; each case is a test of its own.
inline void need(bool there, const std::string& missing) {
  if (there) return;
  std::printf("skipped: %s\n", missing.c_str());
  std::exit(77);  // SKIP_RETURN_CODE
}
inline void need_native_stacks() {
  const std::string missing = native_stacks_missing();
  need(missing.empty(), missing);
}
/// In which call a process is.
inline void need_system_calls_seen() {
  need(::access("/proc/self/syscall", R_OK) == 0, "the kernel does not show in which call a process is");
}

}  // namespace torchup::test
