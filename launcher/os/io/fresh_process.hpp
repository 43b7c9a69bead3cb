#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// A child that is no worker: a helper, or what a user wants to be told by.
struct FreshProcess {
  std::string executable;                ///< a path; PATH is not searched
  std::vector<std::string> arguments;    ///< argv[0] included
  std::vector<std::string> environment;  ///< "NAME=value" each; empty: ours
  int in = -1, out = -1, err = -1;       ///< its descriptors 0, 1, 2, not owned; -1: /dev/null
  bool own_session = false;              ///< else a process group of its own
};

/// Starts it, with the signals of a fresh process and none of our descriptors. It gets SIGKILL when the calling thread
/// ends. Whoever calls reaps it.
///
/// Errors: the system's, when there is no new process or it cannot be executed.
[[nodiscard]] Result<pid_t> start_fresh(const FreshProcess& process);

}  // namespace torchup
