#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace torchup {

/// What one argument of a system call is.
enum class Argument : std::uint8_t {
  none,             ///< nothing that is worth telling
  descriptor,       ///< of a file or a socket
  path,             ///< the address of a path
  descriptor_list,  ///< the address of an array of pollfd; their number is the argument behind it
  process,          ///< the id of a process; another value: of several
};

/// A system call in which a thread may wait.
struct SystemCallKind {
  int x86_64;   ///< its number there; -1: there is none
  int aarch64;  ///< likewise
  std::string_view name;
  Argument argument;
  int place;  ///< of that argument, from 0
};

enum class Processor : std::uint8_t { x86_64, aarch64, other };

/// All that we know, in the order in which they are told about. Source: arch/x86/entry/syscalls/syscall_64.tbl;
/// include/uapi/asm-generic/unistd.h.
[[nodiscard]] std::span<const SystemCallKind> system_call_kinds();

/// Null for a number that is none of them.
[[nodiscard]] const SystemCallKind* system_call_kind(std::int64_t number, Processor processor);

}  // namespace torchup
