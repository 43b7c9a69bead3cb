#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_roles.hpp"

// How torchrun's agents get their ranks, in an elastic rendezvous as in a static one: each says its role, group rank 0
// shares the ranks among all, and each reads its own. Source: SimpleElasticAgent._assign_worker_ranks.

namespace torchup {

/// The key under which a round has one of torchrun_key's names.
using TorchrunKeyNames = std::function<std::string(const std::string& name)>;

/// A round whose addresses and roles are not complete by then fails: torchrun's own agents wait for as long.
inline constexpr Duration torchrun_meeting_limit = std::chrono::seconds{60};
/// Why a round has failed that has waited so long for them; empty: it may wait on. `met`: its workers' store is known;
/// otherwise it is `first`, group rank 0's node, that is to name it.
[[nodiscard]] std::optional<std::string> meeting_failure(std::int64_t round, Duration waited, bool met,
                                                         const TorchrunNode& first);

/// Where the node with that group rank says its role, and where it reads its ranks.
[[nodiscard]] std::string role_name(int group_rank);
[[nodiscard]] std::string ranks_name(int group_rank);

/// What group rank 0 does for all `nodes`. False: somebody's role is still missing. Errors: the store's; a role that is
/// none.
[[nodiscard]] Result<bool> share_torchrun_ranks(TorchrunStore& store, const TorchrunKeyNames& key, int nodes);

/// The place that these ranks give to a node; workers meet at `place`.
[[nodiscard]] Placement placed_by(const TorchrunRanks& ranks, Round round, GroupRank group_rank, int nodes,
                                  const MeetingPlace& place);

}  // namespace torchup
