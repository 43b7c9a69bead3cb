#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// Faults of a whole node, for rehearsals: both processes of the launcher and all that they have started.
namespace torchup {

/// What brings about a fault of this node: a child (torchup itself, started again), which outlives both processes of
/// the launcher.
struct NodeFaultHelper {
  pid_t pid = -1;  ///< no sweep is to end it
  UniqueFd pidfd;
};
/// Stops this node, and has it go on after `lasts`, or once one of the two processes was killed meanwhile: the other
/// one then ends all. Where `lasts` is empty, kills it. Nothing of a stop is seen here but that time has passed.
/// `outer`: the outer process; `cgroup_tag`: as in Guarded. One at a time: they would stop each other.
///
/// Errors: the system's, when the child cannot be started.
[[nodiscard]] Result<NodeFaultHelper> strike_node(pid_t outer, const std::string& cgroup_tag, Duration lasts);

/// What torchup is started with, as its first argument, to be that child; outer pid, pid of the inner one, milliseconds
/// (0: kill) and cgroup tag follow. No user types it.
inline constexpr std::string_view node_fault_word = "torchup: fault of a node";
inline constexpr int node_fault_words = 6;  ///< of its command line
/// The child's whole life. Returns its exit code.
[[nodiscard]] int bring_about_node_fault(char** words);

}  // namespace torchup
