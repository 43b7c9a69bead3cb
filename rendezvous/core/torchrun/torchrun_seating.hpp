#pragma once

#include <functional>
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
