#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"

/// What lives below this process, found by parentage: a child may have left its session and wiped its environment, but
/// we are a subreaper, so whoever loses its parent becomes our child.
namespace torchup {

/// Makes this process the subreaper of all it starts.
void become_subreaper();

/// All living descendants of this process, parents before their children; zombies are left out, and so are `but` with
/// all below them.
[[nodiscard]] std::vector<pid_t> descendants(std::span<const pid_t> but = {});

/// The same of any process.
[[nodiscard]] std::vector<pid_t> descendants_of(pid_t root, std::span<const pid_t> but = {});

/// A process that lives on, and a variable that only it and what it starts have.
struct Forebear {
  pid_t pid = 0;
  std::string variable = {};  ///< "NAME=value"; empty: there is none
};

/// Children of this process that came to it from one of these: they lost their parent, and are still in the forebear's
/// session or were started with its variable. Zombies are left out.
[[nodiscard]] std::vector<pid_t> left_behind_by(std::span<const Forebear> forebears);

/// The kernel's letter for what a process does ('R', 'S', 'D', 'T', 'Z', …); '?' when it is gone.
[[nodiscard]] char state_letter(pid_t pid);

/// A process, its parent, the parent of that and so on, up to a child of this process; empty when it is gone or none of
/// ours.
[[nodiscard]] std::vector<pid_t> ancestry(pid_t pid);

/// False for one that runs as another user (sudo), so that no signal of ours reaches it.
[[nodiscard]] bool may_signal(pid_t pid);

/// Whether a process has a handler for a signal.
[[nodiscard]] bool catches_signal(pid_t pid, int number);

/// Whether this process has any child at all, zombies included, apart from `but`. One system call where `but` is
/// empty.
[[nodiscard]] bool has_children(std::span<const pid_t> but = {});

/// Reaps orphans that were handed to us and have ended: children of the calling thread. Workers are children of the
/// spawner's thread and are not touched; the kernel hands orphans to the main thread, so call it there. `known` are
/// children of it that have their own pidfd: they are left to that. One of them that has ended may hide orphans behind
/// it, so call this again when it is reaped.
void reap_orphans(std::span<const pid_t> known = {});

/// How long the last processes may take to die after the job's end.
inline constexpr Duration last_kill_limit = std::chrono::seconds{10};

/// Stops, then kills every descendant, again and again until none is left or `limit` has passed; reaps what ends.
/// Blocks. Returns whether none is left. For the moments when nothing else matters any more. `but` and what is below
/// them live on.
bool kill_descendants(Duration limit, std::span<const pid_t> but = {});

/// One round of the above without waiting.
void kill_descendants_once(std::span<const pid_t> but = {});

}  // namespace torchup
