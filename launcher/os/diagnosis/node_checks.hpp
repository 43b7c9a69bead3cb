#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/agent/agent_events.hpp"
#include "launcher/core/options/launch_config.hpp"
#include "launcher/os/diagnosis/node_comparison.hpp"
#include "launcher/os/diagnosis/preflight_facts.hpp"
#include "launcher/os/io/loop_post.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Looks at this node for the agent, on a thread of its own for each look: disks, drivers and the user's command may
/// take as long as they like; and compares it with others where that is all there is to do. Lives on the loop.
class NodeChecks {
 public:
  struct Hooks {
    std::function<void(AgentEvent)> tell;                ///< ChecksDone, NodesCompared
    std::function<std::optional<Duration>()> day_ahead;  ///< as AgentLink's
  };
  /// `host`: this machine's name.
  NodeChecks(asio::io_context& loop, const LaunchConfig& config, std::string host, Hooks hooks);
  ~NodeChecks();
  NodeChecks(const NodeChecks&) = delete;
  NodeChecks& operator=(const NodeChecks&) = delete;

  /// ChecksDone comes later, once, unless the look is cancelled before that.
  void run(const RunChecks& order);
  /// Likewise NodesCompared.
  void compare(const CompareNodes& order) { comparison_.run(order); }
  /// Nobody waits for what is under way; a health check is ended with all that it has started.
  void cancel();
  /// The job is over: see NodeComparison::print_own.
  void finish();

 private:
  void remember(const std::vector<Check>& done, bool all);

  const LaunchConfig& config_;
  const std::string host_;
  const std::function<void(AgentEvent)> tell_;
  LoopPost post_;
  NodeComparison comparison_;
  const std::shared_ptr<AskedDisks> disks_ = std::make_shared<AskedDisks>();
  bool nccl_asked_ = false;
  std::vector<Check> done_;              ///< on this node
  std::uint64_t current_ = 0;            ///< number of the look whose answer counts; 0: of none
  std::shared_ptr<const UniqueFd> end_;  ///< an eventfd: becomes readable when the look under way is cancelled
};

}  // namespace torchup
