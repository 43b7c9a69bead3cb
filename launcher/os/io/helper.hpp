#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// A program that helps us and is no worker.
struct Helper {
  std::string executable;               ///< a path; PATH is not searched
  std::vector<std::string> arguments;   ///< without argv[0]
  Duration limit;                       ///< for its whole answer
  std::size_t answer_bytes_max = 1024;  ///< it is ended as soon as it has said more
  Duration farewell{0};                 ///< it gets SIGTERM first, and so long to tidy up
  int cancelled = -1;  ///< a descriptor, readable as soon as nobody wants the answer any more; -1: somebody always does
};

/// Starts the helper, returns what it writes to its stdout, and ends it with its process group: it has answered, or it
/// never will. It reads nothing, its stderr goes nowhere, it has the signals of a fresh process and dies with us. One
/// that not even SIGKILL ends (it sleeps in a driver) is left to whoever reaps our children.
///
/// It blocks the thread that calls it, and dies with that one.
///
/// Errors: errc::timed_out, errc::operation_canceled; the system's when it cannot be started or heard.
[[nodiscard]] Result<std::string> ask_helper(const Helper& helper);

}  // namespace torchup
