#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/membership/restart_budget.hpp"
#include "rendezvous/core/torchrun/torchrun_part.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_roles.hpp"

namespace torchup {

/// The part of a torchrun agent in a static rendezvous (`--node-rank`, `--master-addr`): as many nodes as were asked
/// for, each with the group rank that it was given; they share out ranks once, and meet again at the exit barrier.
/// Nobody comes or goes, and nobody notices who does. Each agent restarts its own workers, by its own count; the ranks
/// stay.
///
/// In torchrun the store is that of group rank 0's agent: it is new and empty when that one begins, and gone when it
/// has ended. A store of ours outlives it, so what a job has left there is removed: most of it at the job's end
/// (forget_static_meeting); the word that opens the exit barrier, which others may be about to read then, when another
/// job begins.
///
/// Source: torchrun, torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py, compared with torch 2.15.0.
class TorchrunStatic final : public TorchrunPart {
 public:
  struct Settings {
    RunId run_id{""};
    /// Where workers meet: the endpoint. Nothing where the store is ours: then the agent with group rank 0, which hosts
    /// it, tells its port (HostStore), and the others read that from the store.
    std::optional<MeetingPlace> place = {};
    std::string address = {};  ///< of this node, as others reach it
  };
  explicit TorchrunStatic(Settings settings) : settings_{std::move(settings)} {}

  void said(const AgentMessage& message, TimePoint now) override;
  [[nodiscard]] Result<std::vector<CoordinatorMessage>> turn(TorchrunStore& store, TimePoint now, UtcTime utc) override;
  [[nodiscard]] Duration pace() const override;
  [[nodiscard]] bool finished_without_store() const override { return phase_ == Phase::leaving_together; }
  [[nodiscard]] bool over() const override { return phase_ == Phase::over; }
  [[nodiscard]] Round round() const override { return Round{round_}; }
  /// As MixedMeeting's.
  void slept(TimePoint now) { since_ = now; }
  /// Memory for what the agent told.
  [[nodiscard]] std::size_t held_bytes() const { return join_ ? torchup::held_bytes(*join_) : 0; }

 private:
  enum class Phase : std::uint8_t { idle, joining, running, stopping, leaving_together, over };

  void said(const Join& join);
  void said(const StoreReady& ready);
  void said(const WorkersFailed& failed);
  void said(const WorkersSucceeded& succeeded);
  void said(const Leave& leave);
  void said(const BesideRounds auto&) {}

  Result<> join(TorchrunStore& store);
  Result<> tell_role(TorchrunStore& store);
  Result<> find_place(TorchrunStore& store);
  Result<> barrier(TorchrunStore& store);
  void begin_meeting(TorchrunStore& store) const;
  void end(Verdict verdict);
  [[nodiscard]] std::string key(const std::string& name) const { return settings_.run_id.value() + "/" + name; }
  [[nodiscard]] int nodes() const { return join_->terms.max_nodes; }
  [[nodiscard]] int group_rank() const { return join_->group_rank->value(); }

  Settings settings_;
  std::optional<Join> join_;
  Phase phase_ = Phase::idle;
  TimePoint now_{};
  TimePoint since_{};  ///< of this phase
  std::vector<CoordinatorMessage> told_;
  bool counted_in_ = false;
  bool counted_out_ = false;
  bool role_told_ = false;
  bool asked_ = false;
  std::optional<Port> own_port_;
  std::int64_t round_ = 0;
  RestartBudget restarts_;  ///< of this node's workers
};

/// Whether a torchrun agent has told its role in a static rendezvous of that job.
[[nodiscard]] bool static_torchrun_waits(TorchrunStore& store, const RunId& run_id, int nodes);

/// The job is over: a next one of the same run id finds nothing of it in this store, which is ours.
void forget_static_meeting(TorchrunStore& store, const RunId& run_id, int nodes);

}  // namespace torchup
