#pragma once

#include <csignal>
#include <string>

#include "launcher/os/worker/child_process.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// What the inner process knows of the outer one.
struct Guarded {
  UniqueFd lifeline;            ///< end of file: the outer process is gone
  pid_t outer = -1;             ///< the pid that users see and signal
  std::string cgroup_tag;       ///< for the names of this job's cgroups (os/attempt_cgroup)
  bool hangup_ignored = false;  ///< SIGHUP was ignored when we were started (nohup)
  /// Our descriptor limit is raised to the hard one. Of the signals that were ignored when we were started, those stay
  /// so in workers that torchrun, too, leaves alone: HUP, INT, QUIT and TERM get its handlers, PIPE and XFSZ Python's.
  Heritage heritage;
};

/// Splits this process in two, one below the other, and returns in the inner one only; the outer one never returns.
///
/// The outer process keeps the pid that users signal. It passes signals on, takes over orphans and ends as the inner
/// one did; when that was killed, it ends every descendant first. The inner process has a session of its own, so a
/// terminal's Ctrl-C comes once, through the outer one; it watches the lifeline and ends all workers when that breaks.
/// So a SIGKILL of either leaves nothing. Both killed in one instant is the limit: then the workers themselves still
/// die by their parent-death signal.
///
/// In both processes all signals that can be caught are blocked, save those that a fault of our own raises. The inner
/// one is about to read files and ask drivers, which may take for ever: until answer_for_workers it dies with the outer
/// one, and INT, QUIT, TERM and HUP end it as they end any command. Call it first thing in main, before any thread:
/// whatever runs before it costs page faults in both processes.
[[nodiscard]] Guarded become_guarded();

/// From here on the inner process has something to end before it goes: it reads all signals from a descriptor, and sees
/// by the lifeline that the outer one is gone. Call it before any thread, which would take the signals otherwise.
void answer_for_workers();

/// The signals that are blocked by become_guarded, for signalfd.
[[nodiscard]] sigset_t guarded_signals();

}  // namespace torchup
