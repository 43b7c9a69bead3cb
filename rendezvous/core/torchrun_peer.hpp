#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/messages.hpp"
#include "rendezvous/core/torchrun_state.hpp"

namespace torchup {

/// Where workers meet.
struct WorkerStore {
  std::string address = {};
  Port port{0};
  friend bool operator==(const WorkerStore&, const WorkerStore&) = default;
};

/// The store in which a job's torchrun agents meet, as a peer of theirs uses it: no call waits for a key. An error
/// means that the store is gone.
class TorchrunStore {
 public:
  virtual ~TorchrunStore() = default;
  [[nodiscard]] virtual Result<std::optional<std::string>> find(const std::string& key) = 0;
  virtual Result<> set(const std::string& key, const std::string& value) = 0;
  [[nodiscard]] virtual Result<std::int64_t> add(const std::string& key, std::int64_t delta) = 0;
  /// What the key holds then.
  [[nodiscard]] virtual Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                                        const std::string& desired) = 0;
  /// A store for the workers of all rounds that group rank 0 does not take along when it goes.
  [[nodiscard]] virtual Result<WorkerStore> worker_store() = 0;
  /// Removes what workers left in their store; one that is out of reach is left as it is.
  virtual void empty_worker_store(const WorkerStore& workers) = 0;
};

/// Whether that is an agent of ours, by the letter that places it before or behind torchrun's.
[[nodiscard]] bool is_ours(const TorchrunNode& node);
/// Its address without that letter.
[[nodiscard]] std::string shown(const TorchrunNode& node);

/// Plays the part of a torchrun agent for one of ours, so that both kinds form one job.
///
/// The agent speaks to it as to a coordinator (messages) and is answered so; towards the others it reads and rewrites
/// their shared state, exchanges addresses and roles, and meets them at the exit barrier, as torchrun 2.15 does. Beyond
/// torchrun it heals what only an outsider can:
///  - As group rank 0 it publishes the workers' store in every round, the same one, emptied, which outlives it: agents
///  that
///    never read a new address, and newcomers that wait for one, both find it.
///  - For a silent group rank 0 that has a store already, it publishes that store's address, and empties it.
///  - It takes a node address that sorts before the others' while a job first forms, and behind them in a running one,
///    so that rank 0 stays where it is.
///  - A participant that is lost makes it ask for a new round, before its own workers stop: by a second entry of ours
///  on the
///    wait list, the only thing that torchrun's agents look at. One that was wrongly taken for dead is called back so.
///  - A round after the first is complete when all that the state knows have come; the last call is for a job's
///  beginning.
///  - It takes itself out of the state when it goes.
/// Restarts are counted per agent, as torchrun does, and not at all where another node's change explains the failure;
/// one whose cause shows only later, since a node that has ended says nothing, is taken back.
class TorchrunPeer {
 public:
  struct Settings {
    RunId run_id{""};
    std::string address = {};  ///< of this node, as others reach it; published for workers
    std::int64_t pid = 0;
    std::int64_t local_id = 0;  ///< tells peers of one process apart
  };

  explicit TorchrunPeer(Settings settings);

  /// What the agent says, to be followed by a turn.
  void said(const AgentMessage& message, TimePoint now);

  /// Looks at the store and does what is due. What the agent is told. After End nothing follows.
  [[nodiscard]] Result<std::vector<CoordinatorMessage>> turn(TorchrunStore& store, TimePoint now, UtcTime utc);

  /// How soon the next turn should be.
  [[nodiscard]] Duration pace() const;

  /// The store has gone: its host has ended. True when that is how a successful job ends.
  [[nodiscard]] bool finished_without_store() const { return phase_ == Phase::leaving_together; }

  [[nodiscard]] bool over() const { return phase_ == Phase::over; }

  /// The round that the agent was placed in last, or is about to be.
  [[nodiscard]] Round round() const { return Round{round_}; }

 private:
  enum class Phase : std::uint8_t {
    idle,     ///< the agent stops its workers, or has not joined yet
    leaving,  ///< its place in the last round is given up
    joining,
    meeting,  ///< the round is complete: addresses and roles are exchanged
    running,
    doubting,          ///< a worker failed; does another node's change explain it?
    leaving_together,  ///< our workers succeeded: the exit barrier
    over,
  };

  Result<> look(TorchrunStore& store);
  [[nodiscard]] Result<bool> put(TorchrunStore& store);
  Result<> keep_alive(TorchrunStore& store);
  Result<> leave_round(TorchrunStore& store);
  Result<> join_round(TorchrunStore& store);
  Result<> call_together(TorchrunStore& store);
  Result<> call_back(TorchrunStore& store);
  Result<> dismiss_caller(TorchrunStore& store);
  Result<> cut_last_call(TorchrunStore& store);
  Result<> hush(TorchrunStore& store);
  Result<> meet(TorchrunStore& store);
  Result<> meet_as_first(TorchrunStore& store);
  Result<> find_worker_store(TorchrunStore& store);
  Result<> take_place(TorchrunStore& store);
  Result<> watch(TorchrunStore& store);
  Result<> barrier(TorchrunStore& store);
  Result<> close(TorchrunStore& store);
  Result<> withdraw(TorchrunStore& store);

  void learn_interval();
  [[nodiscard]] bool goes_on() const;
  [[nodiscard]] bool with_torchruns() const;
  [[nodiscard]] std::optional<std::string> change() const;
  [[nodiscard]] std::string key(const std::string& name, std::int64_t round) const;
  [[nodiscard]] std::string key(const std::string& name) const { return key(name, round_); }
  void enter_meeting();
  void stop(StopCause cause, const std::string& reason);
  void fail_for_good(std::string reason);
  void end(Verdict verdict);
  void tell(CoordinatorMessage message) { told_.push_back(std::move(message)); }
  void tell_roster();

  Settings settings_;
  TorchrunNode me_;
  TorchrunNode caller_;                    ///< stands on the wait list for us while we call others
  std::optional<TimePoint> absent_since_;  ///< that somebody of our last round is not in the state
  TimePoint quiet_from_{};                 ///< torchrun's agents may remember until then that the caller waits
  std::optional<Join> join_;
  TorchrunTerms terms_;
  Phase phase_ = Phase::idle;
  bool named_ = false;
  TimePoint now_{};
  UtcTime utc_{};
  std::vector<CoordinatorMessage> told_;

  TorchrunState state_;
  std::string token_;  ///< the text that the store held when it was read

  TimePoint join_until_{};
  std::optional<TimePoint> all_here_since_;  ///< that nobody in the state is on the way
  std::size_t here_ = 0;
  std::string roster_;

  // The round we are in.
  std::int64_t round_ = 0;
  int group_rank_ = 0;
  std::vector<TorchrunNode> members_;  ///< by group rank
  TimePoint met_at_{};
  bool role_told_ = false;
  std::optional<WorkerStore> workers_;          ///< where this round's workers meet
  std::map<TorchrunNode, UtcTime> heartbeats_;  ///< as we last saw them
  std::optional<TimePoint> change_seen_;
  std::optional<TimePoint> doubt_until_;
  TimePoint barrier_since_{};
  bool counted_out_ = false;

  // What lasts.
  std::optional<Duration> interval_;           ///< between the heartbeats of torchrun's agents, as far as it has shown
  std::optional<WorkerStore> former_workers_;  ///< of the last round we met in
  std::optional<TorchrunNode> former_first_;   ///< whose store that is
  int restart_count_ = 0;
  bool just_counted_ = false;  ///< a restart, for the end of the round before
  int membership_changes_ = 0;
  std::optional<WorkersFailed> failed_;
  std::optional<Leave> leave_;
};

}  // namespace torchup
