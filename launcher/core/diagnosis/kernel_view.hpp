#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/diagnosis/system_calls.hpp"
#include "rendezvous/base/types.hpp"

/// What the kernel tells of a thread in /proc: its texts as values, in words, and whether it moves.
namespace torchup {

/// Of /proc/PID/stat or /proc/PID/task/TID/stat.
struct ThreadStat {
  char state = '?';
  std::int64_t parent = 0;
  std::uint64_t cpu_ticks = 0;           ///< user and system time of its own, in clock ticks
  std::uint64_t children_cpu_ticks = 0;  ///< of its children that have ended and were waited for
  std::uint64_t start_ticks = 0;         ///< with the process id it is unique until the machine's next start
  friend bool operator==(const ThreadStat&, const ThreadStat&) = default;
};
/// The name in it may hold anything; nothing for a text that is cut or is no such text.
[[nodiscard]] std::optional<ThreadStat> parse_thread_stat(std::string_view text);

/// Of /proc/PID/task/TID/status.
struct ThreadStatus {
  std::int64_t tracer = 0;                ///< process id of the debugger or strace that holds it; 0: none
  std::optional<std::uint64_t> switches;  ///< times that it gave its CPU away, of itself or not
  // Sets of signals, as has_signal reads them.
  std::uint64_t caught_signals = 0;   ///< its process has handlers for them
  std::uint64_t blocked_signals = 0;  ///< by it; while it waits in sigwait, without those that it waits for
  std::uint64_t pending_signals = 0;  ///< sent to it alone, and not handled yet
  friend bool operator==(const ThreadStatus&, const ThreadStatus&) = default;
};
[[nodiscard]] ThreadStatus parse_thread_status(std::string_view text);

/// Whether a set of the kernel's has a signal: bit n - 1 stands for signal n.
[[nodiscard]] bool has_signal(std::uint64_t set, int signal);

/// Of /proc/PID/task/TID/syscall: `0 0x3 0x7ffe… … 0x7ffe… 0x7f3a…`, `running`, or `-1 0x7ffe… 0x7f3a…` where it sleeps
/// outside of a call, for a page that comes from a file.
struct SystemCall {
  std::int64_t number = -1;  ///< -1: outside of a call
  std::array<std::uint64_t, 6> arguments{};
  friend bool operator==(const SystemCall&, const SystemCall&) = default;
};
/// Nothing while it runs, and for any other text.
[[nodiscard]] std::optional<SystemCall> parse_system_call(std::string_view text);

/// `/mnt/x`, `a pipe`, `[eventpoll]` for the link /proc/PID/fd/N; a socket is asked for by its inode.
[[nodiscard]] std::string descriptor_text(std::string_view link);
/// Of `socket:[1234]`.
[[nodiscard]] std::optional<std::uint64_t> socket_inode(std::string_view link);

/// What is known of a thread at one moment. What may not be read is missing.
struct KernelView {
  char state = '?';
  std::int64_t tracer = 0;
  std::optional<SystemCall> call;
  std::string target;        ///< what the call is about: file, peer or path, a stranger's word; empty: unknown or none
  std::string wait_channel;  ///< the kernel's function in which it sleeps; empty: unknown
  friend bool operator==(const KernelView&, const KernelView&) = default;
};

/// `sleeping in read of /mnt/x`, `uninterruptible in openat of /nfs/data`, `sleeping in futex`, `stopped`, `running`,
/// and
/// `, traced by process 7` behind it. One printable line of at most look_kernel_bytes_max bytes.
[[nodiscard]] std::string kernel_text(const KernelView& view, Processor processor);

/// What a worker has used up until one moment; what may not be read is missing.
struct Activity {
  std::optional<std::int64_t> main_ran_ns;     ///< by its main thread, on CPUs
  std::optional<std::uint64_t> main_switches;  ///< of its main thread
  std::optional<std::int64_t> tree_ran_ns;     ///< by it and all that descend from it
  std::optional<std::uint64_t> tree_io_bytes;  ///< read and written by them
  friend bool operator==(const Activity&, const Activity&) = default;
};

// A worker that uses this much in a second moves. One that waits for others polls a few times a second, at most.
inline constexpr double moving_main_share_min = 0.005;
inline constexpr double moving_switches_min = 20;
inline constexpr double moving_tree_share_min = 0.05;
inline constexpr double moving_io_bytes_min = 64 * 1024;

/// Whether a worker moves: by what it used between two looks, which are `between` apart, or because its Python stack
/// differs. Both activities are to be taken while no question is on its way to the worker: the first behind the first
/// look's answers, the second before the second look's questions.
[[nodiscard]] bool is_moving(const Activity& before, const Activity& after, Duration between, bool stack_differs);

}  // namespace torchup
