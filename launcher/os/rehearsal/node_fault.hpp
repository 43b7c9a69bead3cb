#pragma once

#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

/// Faults of a whole node, for rehearsals: both processes of the launcher and all that they have started.
namespace torchup {

/// Stops this node, and has it go on after `lasts`; where it is empty, kills it. That is done by a child (torchup
/// itself, started again), which outlives both; nothing of it is seen here but that time has passed. `outer`: the outer
/// process; `cgroup_tag`: as in Guarded. Returns the child's pid: no sweep is to end it.
///
/// Errors: the system's, when it cannot be started.
[[nodiscard]] Result<pid_t> strike_node(pid_t outer, const std::string& cgroup_tag, Duration lasts);

/// What torchup is started with, as its first argument, to be that child; outer pid, pid of the inner one, milliseconds
/// (0: kill) and cgroup tag follow. No user types it.
inline constexpr std::string_view node_fault_word = "torchup: fault of a node";
inline constexpr int node_fault_words = 6;  ///< of its command line
/// The child's whole life. Returns its exit code.
[[nodiscard]] int bring_about_node_fault(char** words);

}  // namespace torchup
