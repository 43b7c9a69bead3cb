#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// What a page about a job shows.
struct JobView {
  struct Node {
    std::string host = {};
    /// ready, seated, finished, stopping or silent; beside a running round standby; aside: lost too often lately;
    /// missing: expected and not heard of; unfit or refused: see `reason`; draining: it is ordered to have no workers,
    /// and has some; drained: it has none until it is undrained
    std::string state = {};
    std::string reason = {};  ///< of a refusal, or why it is unfit; how long it has been silent
    std::optional<GroupRank> group_rank = {};
    int local_world_size = 0;
    bool torchruns = false;               ///< an agent of torchrun's
    std::string node = {};                ///< its id; empty for what is no member
    std::optional<Rank> first_rank = {};  ///< in the round; while the next one is not there, in the last one
    friend bool operator==(const Node&, const Node&) = default;
  };
  std::string phase = {};
  Round round{0};
  int min_nodes = 0, max_nodes = 0;  ///< as they are now: an order may have moved them
  int restart_count = 0, membership_changes = 0;
  int max_restarts = 0;
  int world_size = 0;            ///< of the round that is hosted or runs
  std::string master = {};       ///< address:port, while a round runs
  std::string waits_for = {};    ///< the roster, while nodes are awaited
  std::string last = {};         ///< the last thing that happened, and why
  std::vector<Node> nodes = {};  ///< in no order: of many it costs more to sort them than all the rest
  std::size_t more_missing = 0;  ///< expected hosts that are missing too, beyond missing_shown_max
  std::optional<Verdict> verdict = {};
  /// A node tells of itself, without a coordinator: since when the job is there nobody knows.
  bool by_node = false;
  friend bool operator==(const JobView&, const JobView&) = default;
};

}  // namespace torchup
