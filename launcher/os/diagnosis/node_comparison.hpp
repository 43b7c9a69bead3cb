#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/core/agent/agent_events.hpp"
#include "launcher/core/diagnosis/preflight_codec.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/diagnosis/pair_probe.hpp"
#include "launcher/os/io/loop_post.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// The ways of a node that its pairs condemned, for when it tries them again alone.
struct CondemnedWays {
  GroupRank own{0};
  std::vector<std::string> hosts = {};                    ///< of the round
  std::vector<std::pair<NodePair, PairWay>> others = {};  ///< the other end of each pair
  double median = 0;                                      ///< of the round, in bytes a second
};
/// Why the node still is unfit; nothing: it is not, or nobody listens there any more. Blocks, pair_limit for each.
[[nodiscard]] std::optional<Finding> try_again(const CondemnedWays& ways, int cancel);

/// The nodes of a round tell each other, through the round's worker store, what was found on each, and try the ways
/// between them in pairs; with --preflight-only each prints the same table, once. On a thread of its own. Lives on the
/// loop.
///
/// Once a node was condemned by its ways the end of ours stays open until the job is over, for it to try them again.
class NodeComparison {
 public:
  struct Hooks {
    std::function<void(NodesCompared)> done;
    std::function<std::optional<Duration>()> day_ahead;  ///< as AgentLink's
  };
  NodeComparison(asio::io_context& loop, const LaunchConfig& config, Hooks hooks);
  ~NodeComparison();
  NodeComparison(const NodeComparison&) = delete;
  NodeComparison& operator=(const NodeComparison&) = delete;

  /// What was looked at on this node.
  void know(NodePreflight own);
  /// `done` is called later, once, unless it is cancelled before that.
  void run(const CompareNodes& order);
  void cancel();
  /// Of the last comparison that condemned this node.
  [[nodiscard]] const CondemnedWays& condemned() const { return condemned_; }
  /// The job is over: where the nodes did not meet, the table has this one alone. Waits a little for who reads it.
  void print_own();

 private:
  void look_at_clock();

  const LaunchConfig& config_;
  const Hooks hooks_;
  LoopPost post_;
  NodePreflight own_;
  CondemnedWays condemned_;
  std::shared_ptr<PairEnd> pair_end_;  ///< nothing: of no use any more, or not yet
  std::uint64_t current_ = 0;          ///< number of the comparison whose answer counts
  std::shared_ptr<std::atomic_flag> printed_ = std::make_shared<std::atomic_flag>();  ///< set by who prints the table
  std::shared_ptr<const UniqueFd> end_;  ///< an eventfd: readable when the comparison under way is cancelled
};

}  // namespace torchup
