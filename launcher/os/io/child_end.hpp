#pragma once

#include <sys/types.h>

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// How the end of a child is noticed, and it is reaped: the one place that knows whether this kernel has pidfds.
///
/// A child is watched by a descriptor that becomes readable when it has ended. On Linux 5.3 and newer it is a pidfd. On
/// an older one, or where a container's filter refuses the call, it is the end of a pipe: a thread of its own, with a
/// small stack and all signals blocked, waits for that child alone and then writes to the other end. No SIGCHLD is
/// handled, and nobody else needs to know.
namespace torchup {

/// Whether a pidfd can be had, and polled.
[[nodiscard]] bool has_pidfds();

/// The descriptor for `pid`, which nobody has reaped: a child of ours, or a process that is to become one (an orphan
/// below us). Errors: the system's; in particular errc::no_such_process, as far as it can be told.
[[nodiscard]] Result<UniqueFd> watch_child(pid_t pid);

/// How a child ended: its exit code, or the negative signal number. Waits for its end. Once for each child; its number
/// is not another's before. Throws where it is none of ours.
[[nodiscard]] int reap_child(pid_t pid);

/// Reaps the child if it has ended and nobody has done so. `end` is its descriptor.
void reap_if_ended(pid_t pid, int end);

/// SIGKILL to the child whose descriptor is `end`, never to another one that has got its number since.
void kill_child(pid_t pid, int end);

}  // namespace torchup
