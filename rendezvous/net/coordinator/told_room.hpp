#pragma once

#include <cstddef>
#include <string>

#include "rendezvous/core/round/job_watch.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/net/coordinator/coordinator_job.hpp"
#include "rendezvous/net/coordinator/job_registry.hpp"

/// Whether what an agent tells has room beside what those of all jobs have told (told_bytes_max, answers_bytes_max).
namespace torchup {

/// What the agent tells of itself, when it joins or comes back; null: the event is neither.
[[nodiscard]] const Join* join_in(const RendezvousEvent& event);

/// Why what the event brings to `job` has no room; empty: it has. Of failures and reasons only the beginnings are kept
/// where there is no more.
[[nodiscard]] std::string why_no_room(const JobRegistry& jobs, const CoordinatorJob& job, RendezvousEvent& event);

/// Whether an answer to a look, or what is told of arrivals, has room. `bytes_max`: for those of all jobs.
[[nodiscard]] bool has_room_for(const JobRegistry& jobs, const watch::Event& event, std::size_t bytes_max);

}  // namespace torchup
