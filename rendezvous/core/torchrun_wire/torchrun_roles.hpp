#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/messages.hpp"

/// How the agents of a torchrun job share out ranks: each tells how many workers it has, group rank 0 counts, and each
/// reads what it was given. JSON, in values of the store.
///
/// Source: torchrun, torch/distributed/elastic/agent/server/api.py, _assign_worker_ranks.
namespace torchup {

/// What `role_info/<group rank>` says.
struct TorchrunRole {
  std::string name = {};
  int local_world_size = 0;
};

/// What `assigned_ranks/<group rank>` says.
struct TorchrunRanks {
  int first_rank = 0;
  int world_size = 0;
  int first_role_rank = 0;
  int role_world_size = 0;
  friend bool operator==(const TorchrunRanks&, const TorchrunRanks&) = default;
};

/// Most workers of one node; a role that tells of more is none. The sum of the most nodes that a job may have fits an
/// int.
inline constexpr int torchrun_local_world_max = local_workers_max;
/// Of either text: read as JSON, a long one would take many times its length in memory.
inline constexpr std::size_t torchrun_role_bytes_max = std::size_t{16} << 10;

[[nodiscard]] std::string write_role(const Join& join, int group_rank);
/// Errors: errc::bad_frame, with the text.
[[nodiscard]] Result<TorchrunRole> read_role(const std::string& text);
[[nodiscard]] std::string write_ranks(const TorchrunRanks& ranks);
/// What a node with `workers` workers was given in a round of `nodes` nodes.
///
/// Errors: errc::bad_frame, with the text: it cannot be read, or such a node cannot have these ranks.
[[nodiscard]] Result<TorchrunRanks> read_ranks(const std::string& text, int nodes, int workers);

/// `roles` and the result are by group rank.
[[nodiscard]] std::vector<TorchrunRanks> share_ranks(std::span<const TorchrunRole> roles);

}  // namespace torchup
