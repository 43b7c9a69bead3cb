#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/membership/restart_budget.hpp"
#include "rendezvous/core/torchrun/mixed_meeting.hpp"
#include "rendezvous/core/torchrun/mixed_parts.hpp"
#include "rendezvous/core/torchrun/torchrun_care.hpp"

namespace torchup {

/// Decides once for all agents of ours in the elastic rendezvous of a mixed job: who wants in, is placed, stops, leaves
/// or has succeeded; when all of them are told to stop; when they go to the exit barrier; when the state is closed.
///
/// When rounds form is torchrun's rule. What ours are in torchrun's state is written by the store's owner alone, who
/// also judges who is gone and that a round must end (core/torchrun_care); this follows what that state says.
///
/// Restarts are counted per agent, as torchrun does: for the agent of ours whose failure was first, and not at all
/// where another node's change explains the failure; one whose cause shows only later, since a node that has ended says
/// nothing, is taken back. Group ranks follow torchrun's rule, by address and pid, but for a node that joins a running
/// job: it comes last, so that group rank 0 stays where it is.
class MixedRound final : public MixedParts {
 public:
  explicit MixedRound(RunId run_id) : run_id_{std::move(run_id)}, meeting_{run_id_} {}

  void enter(Id id, std::string address, std::int64_t pid) override {
    agents_.emplace(id, Agent{.address = std::move(address), .pid = pid});
  }
  void said(Id id, const AgentMessage& message, TimePoint now) override;
  [[nodiscard]] Result<std::vector<Told>> turn(TorchrunStore& store, TimePoint now, UtcTime utc) override;
  [[nodiscard]] bool over(Id id) const override;
  [[nodiscard]] Round round(Id id) const override;
  [[nodiscard]] std::optional<TorchrunNode> name(Id id) const override;
  void set_aside(Id id, bool aside) override;
  void slept(TimePoint now, Duration patience) override;
  [[nodiscard]] std::size_t held_bytes() const override;

 private:
  enum class Stage : std::uint8_t {
    idle,      ///< it has not joined yet
    wants_in,  ///< a place in the next round
    meeting,   ///< the round is complete: addresses and roles are exchanged
    running,
    doubting,  ///< a worker failed; does another node's change explain it?
    stopping,  ///< it stops its workers
    succeeded,
    leaving,
    over,
  };
  struct Agent {
    std::string address = {};
    std::int64_t pid = 0;
    std::optional<TorchrunNode> node = {};  ///< its name in the state, once it is there
    Join join = {};
    Stage stage = Stage::idle;
    bool aside = false;
    TimePoint until = {};  ///< of the join timeout, the doubt or the exit barrier
    std::string roster = {};
    std::optional<Port> store = {};  ///< that it has opened for workers
    std::optional<Leave> leave = {};

    std::int64_t round = -1;  ///< the last one that it had a place in
    int group_rank = 0;
    bool counted_out = false;  ///< at the exit barrier
    std::optional<WorkersFailed> failed = {};

    RestartBudget restarts = {};
    bool just_counted = false;  ///< a restart, for the end of the round before
    int membership_changes = 0;
  };
  /// One turn's view.
  struct Turn {
    TorchrunStore& store;
    TorchrunCare& care;
    UtcTime utc;
    [[nodiscard]] const TorchrunState& state() const { return care.state(); }
  };

  void said(Agent& agent, const Join& join);
  void said(Agent& agent, const StoreReady& ready) { agent.store = ready.port; }
  void said(Agent& agent, const WorkersFailed& failed);
  void said(Agent& agent, const WorkersSucceeded& succeeded);
  void said(Agent& agent, const Leave& leave) { agent.leave = leave; }
  void said(Agent&, const BesideRounds auto&) {}

  Result<> take_leaves(const Turn& turn);
  Result<> leave_together(const Turn& turn);
  Result<> hear_closed(const Turn& turn);
  Result<> watch(const Turn& turn);
  Result<> project(const Turn& turn);
  Result<> seat(const Turn& turn);
  Result<> meet(const Turn& turn);
  Result<> wait(const Turn& turn);

  [[nodiscard]] bool any(Stage stage) const;
  [[nodiscard]] bool goes_on(const Agent& agent, const TorchrunState& state) const;
  [[nodiscard]] std::string change(const TorchrunState& state) const;
  Result<> decide_failure(const Turn& turn);
  [[nodiscard]] bool stays_out(const Agent& agent, const TorchrunState& state) const;
  Result<> give_up(const Turn& turn, const Agent& waiting);
  Result<> close(const Turn& turn, Verdict verdict);
  void stop(Id id, Agent& agent, StopCause cause, const std::string& reason);
  void conclude(const Verdict& verdict);
  void end(Id id, Agent& agent, const Verdict& verdict);
  void fail(std::string reason);
  void tell(Id id, CoordinatorMessage message) { told_.push_back({id, std::move(message)}); }
  void tell_roster(Id id, Agent& agent, const TorchrunState& state, const std::string& here);
  [[nodiscard]] std::string round_key(const char* name, std::int64_t round) const {
    return torchrun_round_key(run_id_, round, name);
  }

  RunId run_id_;
  std::map<Id, Agent> agents_;
  JobTerms terms_;  ///< the job's
  TimePoint now_{};
  bool said_ = false;
  std::optional<TimePoint> turn_at_;
  std::vector<Told> told_;
  bool concluded_ = false;  ///< badly, for all

  // The last round that ours had a place in.
  MixedMeeting meeting_;
  std::int64_t round_ = -1;
  std::vector<TorchrunNode> members_;  ///< by group rank
};

}  // namespace torchup
