#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// A cgroup (version 2) that the workers of one attempt are born in, and with them all that they start: the kernel ends
/// them in one step, faster than the fastest fork. A second net beside parentage (os/descendants), which also finds
/// what has moved to another cgroup.
class AttemptCgroup {
 public:
  /// Makes a cgroup below our own, named `tag` and `number`, and removes empty ones of jobs that are gone. Nothing
  /// where that is not ours to do: no version 2, read only, not delegated, no cgroup.kill (Linux 5.14).
  ///
  /// Ours to do means: we may write there and, for root under systemd, whose tree it is, the unit says `Delegate=`.
  [[nodiscard]] static std::unique_ptr<AttemptCgroup> make(const std::string& tag, int number);

  AttemptCgroup(const AttemptCgroup&) = delete;
  AttemptCgroup& operator=(const AttemptCgroup&) = delete;
  /// Tries to remove it once more. What is still there the next launcher removes (make).
  ~AttemptCgroup();

  /// The open folder, for the birth of a worker.
  [[nodiscard]] int folder() const { return folder_.get(); }
  /// Whether nobody lives in it or below; zombies do not live.
  [[nodiscard]] bool empty() const;
  /// SIGKILL to all in it and below.
  void kill() const;
  /// Removes it with all cgroups that workers made below. False while somebody lives in it, which may be so for a
  /// moment after `empty`. Does not wait.
  bool remove();
  /// The same, and ends who lives in it: waits for that, a second at most. Blocks.
  void remove_waiting();

 private:
  explicit AttemptCgroup(std::string path);
  std::string path_;
  UniqueFd folder_;
  bool removed_ = false;
};

/// A name that no other job of this machine has, whatever its PID namespace, for the cgroups of this one.
[[nodiscard]] std::string cgroup_tag();

/// Ends and removes the cgroups that a process of ours has left below our own because it was killed.
void remove_attempt_cgroups(const std::string& tag);

}  // namespace torchup
