#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/cpu_set.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Where a child finds its page.
inline constexpr int page_descriptor = 3;
/// Where it finds its end of its channel.
inline constexpr int channel_descriptor = 4;

/// What this process was started with and has changed for itself: its workers get it as it was.
struct Heritage {
  rlimit descriptor_limit{};              ///< of open descriptors
  std::vector<int> ignored_signals = {};  ///< that stay ignored
};

/// What a child is to be.
struct ChildRequest {
  std::string executable;                                              ///< a path; PATH is not searched
  std::vector<std::string> arguments;                                  ///< argv[0] included
  std::vector<std::string> environment;                                ///< "NAME=value" each
  std::shared_ptr<const std::vector<std::string>> common_environment;  ///< further ones, the same for many; or nothing
  UniqueFd in, out, err;                                               ///< its descriptors 0, 1, 2; empty: ours
  CpuSet cpus;                                                         ///< that it is bound to; empty: ours
  /// An open page that it shares with us (os/shared_page); not owned. It becomes descriptor `page_descriptor`, and the
  /// child is told of it in TORCHUP_WORKER_PAGE. Empty address (fd -1): none.
  int page = -1;
  WorkerPageAddress page_address = {};
  /// The child's end of its channel to us (os/worker/worker_channel), only with a page; it becomes descriptor
  /// `channel_descriptor`, and the child is told of it in TORCHUP_WORKER_CHANNEL. Empty: none.
  UniqueFd channel;
  WorkerChannelAddress channel_address = {};
  /// Where it has no page: open descriptors that become 3 and 4, the second only with the first; -1: none. Not owned.
  std::array<int, 2> more = {-1, -1};
  /// A further variable, an address whose end is the child's pid, which it writes itself: "NAME=1:3:4711:0"; or empty.
  std::string own_address = {};
  std::optional<Heritage> heritage;  ///< nothing: our descriptor limit, and no signal is ignored
  int cgroup = -1;  ///< the open folder of a cgroup (version 2) that it is born in; -1: ours. Not owned
};

/// A started child: leader of its own session and process group.
struct ChildProcess {
  pid_t pid = -1;
  UniqueFd pidfd;  ///< readable when the child has ended (os/io/child_end); where there are no pidfds, a pipe's end
  std::string outside_cgroup;  ///< why it is not in the cgroup of the request; empty: it is, or none was asked for
  UniqueFd channel = {};       ///< our end of its channel; empty: it has none
};

/// One thread's starts, which may stand still in their exec, for another thread to end.
class ChildBirth {
 public:
  /// SIGKILL to the child whose start is under way, and to those that are started until `allow`: start_child returns
  /// them as if they had been killed a moment later.
  void end();
  void allow() { ended_ = false; }

 private:
  friend Result<ChildProcess> start_child(const ChildRequest& request, ChildBirth* birth);
  friend struct Launch;
  std::mutex mutex_;            ///< held to end the child, and to forget it before it can be reaped
  std::atomic<pid_t> pid_ = 0;  ///< written by the child itself, in our memory; 0: no start is under way
  std::atomic<bool> ended_ = false;
};

/// Starts a child, which gets SIGKILL when the *calling thread* ends: call it from one that lives as long as the agent.
/// Returns when the child runs its program, which a stalled file system may delay without bound.
///
/// The child shares our memory until then (as after vfork, but on a stack of its own), so it makes system calls and
/// nothing else. Its descriptors above 2, page and channel apart, are closed, its signals unblocked and by default but
/// for those that its heritage ignores.
///
/// This is not os/io/fresh_process, by which children that are no workers are started, nor Boost.Process. Of the
/// latter's launchers in 1.81 the one that forks copies the page tables for each worker, and the one that vforks cannot
/// be used beside a loop: in the child it tells Asio of the fork, which replaces the loop's epoll descriptor in the
/// memory that both share (the next process handle is refused with EINVAL), and a failed exec runs our exit handlers
/// there. Median milliseconds from the first start to the last end of `/bin/true`, two cores under load, a parent of 4
/// (of 32) MiB:
///
///                        2 children    8, as in a restart    256
///   default_launcher     4.0 (9.7)     27 (44)               901 (2100)
///   this, one thread     2.0 (3.4)     16 (15)               359 (467)
///   this, three threads  3.9 (3.9)     7.7 (7.2)             113 (125)
///
/// Where the system does not let a child be born in `cgroup` (Linux before 5.7, a seccomp filter without clone3, a
/// processor other than x86-64 and AArch64, for which nobody has written the call), it joins it before it executes
/// anything, which takes longer.
///
/// Linux 4.18 is enough: without pidfds the end is told as os/io/child_end says; without close_range what we were
/// started with is made close-on-exec at the first start, as all that is ours is.
///
/// Errors: the system's, with the path and the call that failed.
[[nodiscard]] Result<ChildProcess> start_child(const ChildRequest& request, ChildBirth* birth = nullptr);

/// Whether this system can start children. Errors: errc::refused for a kernel that is too old.
[[nodiscard]] Result<> check_kernel();
/// The same of a release as uname(2) says it, "4.18.0-553.el8.x86_64". One that is no number is taken for new.
[[nodiscard]] Result<> check_release(std::string_view release);

}  // namespace torchup
