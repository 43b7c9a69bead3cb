#pragma once

#include <sys/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"

/// Another process's threads, its memory, and where one of its threads stands.
namespace torchup {

/// The threads of a process, at most threads_max; empty: it is gone.
inline constexpr std::size_t threads_max = 4096;
[[nodiscard]] std::vector<pid_t> threads_of(pid_t process);

/// What a thread of another process needs to be unwound, copied while it was stopped.
struct ThreadCopy {
#if defined(__x86_64__)
  std::array<std::uint64_t, 17> registers{};  ///< by DWARF's numbers: rax rdx rcx rbx rsi rdi rbp rsp r8-r15 rip
#else
  std::array<std::uint64_t, 32> registers{};  ///< x0-x30, sp
#endif
  std::uint64_t instruction = 0;
  std::uint64_t stack_begin = 0;
  std::string stack;    ///< what lies from stack_begin on
  std::string problem;  ///< why there is no copy; empty: there is
};

/// Of the stack; what lies further out is read from the thread as it runs on, and stands still where it hangs.
inline constexpr std::size_t stack_copy_bytes = std::size_t{256} << 10;

/// With threads that are told to stop, one after the other: a dead file server may hold many, and who waits for us does
/// so for some seconds. Each has a moment.
class Patience {
 public:
  [[nodiscard]] Duration for_one() const { return std::clamp<Duration>(left_, shortest, longest); }
  void spend(Duration time) { left_ -= time; }

 private:
  static constexpr Duration longest = std::chrono::milliseconds{500};
  static constexpr Duration shortest = std::chrono::milliseconds{20};
  Duration left_ = std::chrono::seconds{1};
};

/// Stops the thread, copies, and lets it go on; a thread that is stopped already stays so. One that does not stop in
/// time, for it sleeps uninterruptibly, is let go when our process ends.
[[nodiscard]] ThreadCopy copy_thread(pid_t process, pid_t thread, Patience& patience);

/// Up to `bytes` of a process's memory at `address`, whole pages but at the ends; empty when there is nothing to read.
/// No address is too large to be asked for.
[[nodiscard]] std::string copy_memory(pid_t process, std::uint64_t address, std::size_t bytes);

}  // namespace torchup
