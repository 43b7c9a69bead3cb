#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "launcher/core/agent/agent_events.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/io/loop_post.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// The nodes of a round tell each other, through the round's worker store, what was found on each, and try the ways
/// between them in pairs; with --preflight-only each prints the same table. On a thread of its own. Lives on the loop.
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
  /// The job is over: where the nodes did not meet, the table has this one alone. Waits a little for who reads it.
  void print_own();

 private:
  void look_at_clock();

  const LaunchConfig& config_;
  const Hooks hooks_;
  LoopPost post_;
  NodePreflight own_;
  std::uint64_t current_ = 0;  ///< number of the comparison whose answer counts
  bool printed_ = false;
  std::shared_ptr<const UniqueFd> end_;  ///< an eventfd: readable when the comparison under way is cancelled
};

}  // namespace torchup
