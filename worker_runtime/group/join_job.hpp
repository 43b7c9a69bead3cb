#pragma once

#include <chrono>
#include <functional>

#include "worker_runtime/group/group_state.hpp"

namespace torchup {

/// For connections among ranks that have met before: who is missing has died since, and must not cost the time-out of
/// collectives. Shorter than the time that survivors have for parking (--shutdown-timeout, 30 s).
inline constexpr std::chrono::seconds connect_limit{10};

/// How a process that is in the job joins its next round.
struct JoinTerms {
  bool kept = false;                         ///< it was in the round before
  std::function<void()> check = [] {};       ///< asked often while others are waited for; throws where that is over
  std::optional<torch::Device> device = {};  ///< the one it has: not to be chosen again
  /// Longest time for the connections alone.
  std::optional<std::chrono::milliseconds> connect_limit = {};
};

/// Meets the other ranks of the job, as `options` say, and connects to them. `state` is that of the job's group, new or
/// without a connection; all of it is of the new round then. Throws as init_process_group does.
void join_job(ProcessGroup::State& state, const ProcessGroupOptions& options, const JoinTerms& terms);

/// Connects the ranks of a group whose state is filled in.
void connect_group(ProcessGroup::State& state, std::optional<std::chrono::milliseconds> limit = {});

}  // namespace torchup
