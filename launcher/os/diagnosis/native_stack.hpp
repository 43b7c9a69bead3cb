#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

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

/// At most native_threads_max of all targets together. A thread that cannot be read has a problem in place of frames.
[[nodiscard]] std::vector<NativeThread> read_native_stacks(const dw::Library& library,
                                                           std::span<const StackTarget> targets);

/// The program's whole life, given its arguments. Writes to_text of each thread to stdout. Returns its exit code: 0; 1
/// when a thread could not be read; 2 for wrong arguments.
[[nodiscard]] int run_stack_program(std::span<const std::string> arguments);

}  // namespace torchup
