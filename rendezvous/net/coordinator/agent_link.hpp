#pragma once

#include <functional>
#include <optional>

#include "rendezvous/core/link/coordinator_link.hpp"

namespace torchup {

/// An agent's connection to its coordinator: over a socket, or inside one process. Both behave alike, so the agent
/// machine does not know which it has. Lives on one loop; `send` and the handler run on that loop's thread.
///
/// The handler is called from the loop, never from within `send`. Reconnection, keep-alives, fencing and queueing are
/// the link's own work: when the way to the coordinator was cut for too long, the handler gets StopWorkers with
/// StopCause::fenced, and the Join that follows makes this node a new one. Destroying the link closes it; no handler
/// call follows.
class AgentLink {
 public:
  using Handler = std::function<void(LinkEvent)>;

  AgentLink() = default;
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;
  virtual ~AgentLink() = default;

  /// Whether torchrun's agents decide, at a store of theirs: they end all workers before each round.
  [[nodiscard]] virtual bool is_foreign() const { return false; }
  virtual void send(AgentMessage message) = 0;

  /// How far this node's workers are. The newest goes with each keep-alive while the node has a place; a coordinator in
  /// this process hears of it at once. To be said again and again, also when all workers have ended with 0, for the
  /// others are watched on. Where torchrun's agents decide, nobody hears of it.
  virtual void report_progress(const ProgressReport& report) = 0;
  /// What this node's workers do, for those who look at the job. The newest goes to the coordinator now and then. Where
  /// torchrun's agents decide, nobody hears of it.
  virtual void report_node(const NodeReport& report) = 0;
  /// Whether an Ask would be heard now: this node is a member, and the way is not known to be cut. Where torchrun's
  /// agents decide, never.
  [[nodiscard]] virtual bool reaches() const = 0;
  /// How far the coordinator's monotonic clock (std::chrono::steady_clock) is ahead of this node's; nothing while it is
  /// not known, and where torchrun's agents decide.
  [[nodiscard]] virtual std::optional<ClockOffset::Estimate> clock() const = 0;
  /// How far this node's clock of the day is ahead of the coordinator's, below 0 for behind; nothing likewise.
  [[nodiscard]] virtual std::optional<Duration> day_ahead() const = 0;

  /// For rehearsals: cuts the way to the coordinator, or mends it. Connections break, and none is made until then;
  /// where this process hosts the coordinator, those of all other agents. False: there is no way that could be cut.
  [[nodiscard]] virtual bool set_cut(bool) { return false; }

  /// To be called before the process exits, after End or LinkLost: lets go of the coordinator in good order, then calls
  /// `done` from the loop. Where this process hosts the coordinator that takes until all other agents have the verdict,
  /// or `linger` is over.
  virtual void finish(Duration linger, std::function<void()> done) = 0;
};

}  // namespace torchup
