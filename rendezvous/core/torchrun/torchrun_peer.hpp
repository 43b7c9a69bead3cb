#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/membership/restart_budget.hpp"
#include "rendezvous/core/torchrun/torchrun_board.hpp"
#include "rendezvous/core/torchrun/torchrun_meeting.hpp"
#include "rendezvous/core/torchrun/torchrun_outsider.hpp"
#include "rendezvous/core/torchrun/torchrun_part.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"

namespace torchup {

/// Plays the part of a torchrun agent for one of ours in a rendezvous that a torchrun agent owns, so that both kinds
/// form one job. (At a store of ours: core/mixed_round.)
///
/// Towards the others it takes torchrun's own steps in their shared state (TorchrunBoard), exchanges addresses and
/// roles (TorchrunMeeting), and meets them at the exit barrier, as torchrun 2.15 does. What it does beyond torchrun is
/// TorchrunOutsider.
///
/// Restarts are counted per agent, as torchrun does, and not at all where another node's change explains the failure;
/// one whose cause shows only later, since a node that has ended says nothing, is taken back. It takes itself out of
/// the state when it goes. Its group rank follows torchrun's rule, by address and pid, but for a node that joins a
/// running job: it comes last, so that group rank 0 stays where it is.
class TorchrunPeer final : public TorchrunPart {
 public:
  struct Settings {
    RunId run_id{""};
    std::string address = {};  ///< of this node, as others reach it; published for workers
    std::int64_t pid = 0;
    std::int64_t number = 0;  ///< tells peers of one process apart
  };

  explicit TorchrunPeer(Settings settings);

  void said(const AgentMessage& message, TimePoint now) override;
  [[nodiscard]] Result<std::vector<CoordinatorMessage>> turn(TorchrunStore& store, TimePoint now, UtcTime utc) override;
  [[nodiscard]] Duration pace() const override;
  [[nodiscard]] bool finished_without_store() const override { return phase_ == Phase::leaving_together || released_; }
  [[nodiscard]] bool over() const override { return phase_ == Phase::over; }
  [[nodiscard]] Round round() const override { return Round{round_}; }

 private:
  enum class Phase : std::uint8_t {
    idle,      ///< the agent has not joined yet
    stopping,  ///< the agent stops its workers
    leaving,   ///< its place in the last round is given up
    joining,
    meeting,  ///< the round is complete: addresses and roles are exchanged
    running,
    doubting,          ///< a worker failed; does another node's change explain it?
    leaving_together,  ///< our workers succeeded: the exit barrier
    over,
  };

  void said(const Join& join);
  void said(const StoreReady& ready);
  void said(const WorkersFailed& failed);
  void said(const WorkersSucceeded& succeeded);
  void said(const Leave& leave);
  void said(const BesideRounds auto&) {}

  Result<> step(TorchrunStore& store);
  Result<> keep_alive(TorchrunStore& store);
  Result<> take_leave(TorchrunStore& store);
  Result<> leave_round(TorchrunStore& store);
  Result<> join_round(TorchrunStore& store);
  Result<> meet(TorchrunStore& store);
  Result<> watch(TorchrunStore& store);
  Result<> decide_failure(TorchrunStore& store);
  Result<> barrier(TorchrunStore& store);
  Result<> close(TorchrunStore& store);
  Result<> withdraw(TorchrunStore& store);
  Result<> look_whether_released(TorchrunStore& store);

  [[nodiscard]] bool goes_on() const;
  [[nodiscard]] bool with_torchruns() const;
  [[nodiscard]] std::optional<std::string> change() const;
  [[nodiscard]] std::string key(const char* name, std::int64_t round) const {
    return torchrun_round_key(settings_.run_id, round, name);
  }
  void enter_meeting();
  void stop(StopCause cause, const std::string& reason);
  void fail_for_good(std::string reason);
  void end(Verdict verdict);
  void tell(CoordinatorMessage message) { told_.push_back(std::move(message)); }
  void tell_roster();
  [[nodiscard]] const TorchrunState& state() const { return board_.state(); }

  Settings settings_;
  TorchrunBoard board_;
  TorchrunMeeting meeting_;
  TorchrunOutsider outsider_;
  std::optional<TorchrunNode> me_;
  std::optional<Join> join_;
  Phase phase_ = Phase::idle;
  TimePoint now_{};
  UtcTime utc_{};
  std::vector<CoordinatorMessage> told_;
  TimePoint join_until_{};
  std::string roster_;
  bool released_ = false;  ///< a spare that saw the others go to the exit barrier

  // The round we are in.
  std::int64_t round_ = 0;
  int group_rank_ = 0;
  std::vector<TorchrunNode> members_;  ///< by group rank
  std::optional<TimePoint> change_seen_;
  std::optional<TimePoint> doubt_until_;
  TimePoint barrier_since_{};
  bool counted_out_ = false;

  // What lasts.
  RestartBudget restarts_;     ///< of this node's workers
  bool just_counted_ = false;  ///< a restart, for the end of the round before
  int membership_changes_ = 0;
  std::optional<WorkersFailed> failed_;
  std::optional<Leave> leave_;
};

}  // namespace torchup
