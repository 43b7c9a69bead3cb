#include "rendezvous/core/torchrun/torchrun_seating.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "rendezvous/core/text/wording.hpp"

namespace torchup {

std::optional<std::string> meeting_failure(std::int64_t round, Duration waited, bool met, const TorchrunNode& first) {
  if (waited <= torchrun_meeting_limit) return {};
  return fmt::format("round {} waited {} for {}", round, seconds(torchrun_meeting_limit),
                     met ? "the roles of all nodes" : "the workers' store of " + shown(first));
}

std::string role_name(int group_rank) { return fmt::format("{}{}", torchrun_key::roles, group_rank); }
std::string ranks_name(int group_rank) { return fmt::format("{}{}", torchrun_key::places, group_rank); }

Result<bool> share_torchrun_ranks(TorchrunStore& store, const TorchrunKeyNames& key, int nodes) {
  std::vector<TorchrunRole> roles;
  for (int i = 0; i < nodes; ++i) {
    auto text = store.find(key(role_name(i)));
    if (!text) return text.error();
    if (!*text) return false;
    auto role = read_role(**text);
    if (!role) return role.error();
    roles.push_back(*std::move(role));
  }
  int group_rank = 0;
  for (const TorchrunRanks& ranks : share_ranks(roles)) {
    if (auto set = store.set(key(ranks_name(group_rank++)), write_ranks(ranks)); !set) return set.error();
  }
  return true;
}

Placement placed_by(const TorchrunRanks& ranks, Round round, GroupRank group_rank, int nodes,
                    const MeetingPlace& place) {
  return {.round = round,
          .group_rank = group_rank,
          .group_world_size = nodes,
          .first_rank = Rank{ranks.first_rank},
          .world_size = ranks.world_size,
          .first_role_rank = Rank{ranks.first_role_rank},
          .role_world_size = ranks.role_world_size,
          .master_addr = place.address,
          .master_port = place.port};
}

}  // namespace torchup
