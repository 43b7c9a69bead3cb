#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/diagnosis/kernel_view.hpp"

/// A worker seen from outside, one function for each source. Each gives nothing where it may not look or nobody is
/// there any more, and none waits: only /proc is opened, never what a worker has open.
namespace torchup {

/// What this program runs on, and so what its workers run on.
[[nodiscard]] Processor own_processor();

/// `whole`: with the peer, path or process that it waits for; else the call alone, which costs less.
enum class KernelDetail : std::uint8_t { call, whole };

/// Of a process's main thread, with what it waits for. Another thread that sleeps uninterruptibly may hold what a read
/// of the process's memory waits for: then no memory is read, and a path stays unknown.
[[nodiscard]] KernelView read_kernel_view(pid_t pid, KernelDetail detail = KernelDetail::whole);

/// The state of one thread; '?' when it is gone.
[[nodiscard]] char thread_state(pid_t process, pid_t thread);

/// `pid` and all that descend from it, parents first, at most tree_processes_max. On kernels that list no children it
/// is `pid` alone.
inline constexpr std::size_t tree_processes_max = 1024;
[[nodiscard]] std::vector<pid_t> process_tree(pid_t pid);

/// What `pid` has used up; `tree` is its process_tree.
[[nodiscard]] Activity read_activity(pid_t pid, const std::vector<pid_t>& tree);

/// What a worker's page says of who writes Python stacks. A stranger's word.
struct StackWriter {
  pid_t process = 0;  ///< that has claimed the page
  pid_t helper = 0;   ///< the kernel's id of its helper thread; 0: none
  int signal = 0;     ///< that it has a handler for
};

// Real-time signals that a hook may take.
inline constexpr int stack_signal_min = 41;
inline constexpr int stack_signal_max = 61;

enum class StackAsked : std::uint8_t { no, helper, main };

/// Asks for the Python stacks of a worker: by a signal to its helper thread, else to its main thread. `no`: the process
/// is not in the session that `worker` leads, has no handler for the signal (it would die of it), or is gone; or the
/// thread blocks the signal, or sleeps until one comes (sigwait, pause) and would go on. The answer comes when it
/// comes.
[[nodiscard]] StackAsked ask_for_stack(pid_t worker, const StackWriter& writer);

}  // namespace torchup
