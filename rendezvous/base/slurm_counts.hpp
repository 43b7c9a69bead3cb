#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// Nodes one behind the other that have as many tasks each.
struct SlurmCount {
  int tasks = 1;  ///< >= 1
  int nodes = 1;  ///< >= 1
  friend bool operator==(const SlurmCount&, const SlurmCount&) = default;
};

/// Of all nodes together.
inline constexpr int slurm_count_nodes_max = 1 << 16;
inline constexpr int slurm_count_tasks_max = 1 << 20;  ///< on one node

/// Reads what Slurm says of its tasks, "8(x2),4": 8 on each of the first two nodes, 4 on the third.
///
/// Errors: errc::bad_value "is not a list of counts like 8(x2),4" for anything else, errc::limit_exceeded.
[[nodiscard]] Result<std::vector<SlurmCount>> read_slurm_counts(std::string_view text);

/// The tasks of the node with this index, from 0; nothing where the list ends before it.
[[nodiscard]] std::optional<int> tasks_of_node(std::span<const SlurmCount> counts, int node);

}  // namespace torchup
