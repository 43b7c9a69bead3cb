#pragma once

#include <string>
#include <vector>

#include "launcher/core/diagnosis/native_text.hpp"
#include "launcher/os/diagnosis/native_stack.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// A `torchup-stack` that runs beside us, for native stacks: a process of its own, because libdw takes tens of MiB and
/// reads what strangers have mapped. It dies with the thread that started it, and with this object.
class StackHelper {
 public:
  /// `program`: torchup's own file. Where it cannot be started, each thread's problem says why.
  StackHelper(const std::string& program, std::vector<StackTarget> targets);
  StackHelper(const StackHelper&) = delete;
  StackHelper& operator=(const StackHelper&) = delete;
  ~StackHelper();

  [[nodiscard]] pid_t pid() const { return child_.pid; }  ///< -1: it does not run
  /// What it says until it ends, then or earlier: native_text_bytes_max at most. `closing`: nobody waits any more when
  /// that descriptor is readable. A target of which it has said nothing has a problem.
  [[nodiscard]] std::vector<NativeThread> read(TimePoint until, int closing);

 private:
  std::vector<StackTarget> targets_;
  std::string problem_;
  ChildProcess child_;
  UniqueFd out_;
};

}  // namespace torchup
