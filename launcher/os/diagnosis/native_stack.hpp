#pragma once

#include <sys/types.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "launcher/core/diagnosis/native_text.hpp"
#include "launcher/os/diagnosis/libdw.hpp"

/// The stacks of native functions of another process: `torchup-stack`, for the agent and for people.
///
/// A thread is stopped for as long as its registers and the innermost part of its stack are copied, well below a
/// millisecond; all else is read while it runs on. It is stopped by ptrace, so that some system calls which it sleeps
/// in return EINTR, as they do after Ctrl-Z and `fg`: epoll_wait, and receiving with a time limit. Names come from what
/// the process has loaded; no debug files are looked for, for that may ask the network.
namespace torchup {

/// One process, or one thread of it.
struct StackTarget {
  pid_t process = 0;
  pid_t thread = 0;  ///< 0: all of them, the main one first
  friend bool operator==(const StackTarget&, const StackTarget&) = default;
};

/// As the program is called: torchup is it when it is started under this name.
inline constexpr std::string_view stack_program_name = "torchup-stack";
[[nodiscard]] bool is_stack_program(std::string_view argument_zero);

/// Takes each thread, those of a process together: at most native_threads_max in all. One that cannot be read has a
/// problem in place of frames; who sleeps uninterruptibly is waited for half a second, and many of them hardly longer
/// than two.
void read_native_stacks(const dw::Library& library, std::span<const StackTarget> targets,
                        const std::function<void(const NativeThread&)>& take);

/// The program's whole life, given its arguments. Writes to_text of each thread to stdout, as soon as it is read.
/// Returns its exit code: 0; 1 when a thread could not be read; 2 for wrong arguments.
[[nodiscard]] int run_stack_program(std::span<const std::string> arguments);

}  // namespace torchup
