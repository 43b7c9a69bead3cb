#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/messages.hpp"
#include "rendezvous/core/torchrun_state.hpp"

namespace torchup {

/// The store in which a job's torchrun agents meet, as a peer of theirs uses it: no call waits for a key. An error means
/// that the store is gone.
class TorchrunStore {
 public:
  virtual ~TorchrunStore() = default;
  [[nodiscard]] virtual Result<std::optional<std::string>> find(const std::string& key) = 0;
  virtual Result<> set(const std::string& key, const std::string& value) = 0;
  [[nodiscard]] virtual Result<std::int64_t> add(const std::string& key, std::int64_t delta) = 0;
  /// What the key holds then.
  [[nodiscard]] virtual Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                                        const std::string& desired) = 0;
  /// Removes all keys of the workers' store at that address; one that is out of reach is left as it is. False while that
  /// goes on: to be called again.
  [[nodiscard]] virtual bool empty_worker_store(const std::string& address, Port port) = 0;
};

/// Plays the part of a torchrun agent for one of ours, so that both kinds form one job.
///
/// The agent speaks to it as to a coordinator (messages) and is answered so; towards the others it reads and rewrites
/// their shared state, exchanges addresses and roles, and meets them at the exit barrier, as torchrun 2.15 does. Beyond
/// torchrun it heals what only an outsider can:
///  - As group rank 0 it publishes the workers' store in every round, at one port, emptied: agents that never read a new
///    address, and newcomers that wait for one, both find it.
///  - For a silent group rank 0 that has a store already, it publishes that store's address, and empties it.
///  - It takes a node address that sorts before the others' while a job first forms, and behind them in a running one,
///    so that rank 0 stays where it is.
///  - A participant that is silent makes it ask for a new round, and it takes itself out of the state when it goes.
/// Restarts are counted per agent, as torchrun does, and not at all where another node's change explains the failure.
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

  struct Pair {
    std::string address = {};
    std::string port = {};
    friend bool operator==(const Pair&, const Pair&) = default;
  };

  Result<> look(TorchrunStore& store);
  [[nodiscard]] Result<bool> put(TorchrunStore& store);
  Result<> keep_alive(TorchrunStore& store);
  Result<> leave_round(TorchrunStore& store);
  Result<> join_round(TorchrunStore& store);
  Result<> meet(TorchrunStore& store);
  Result<> meet_as_first(TorchrunStore& store);
  Result<> find_worker_store(TorchrunStore& store);
  Result<> take_place(TorchrunStore& store);
  Result<> watch(TorchrunStore& store);
  Result<> barrier(TorchrunStore& store);
  Result<> close(TorchrunStore& store);
  Result<> withdraw(TorchrunStore& store);

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
  std::string roster_;

  // The round we are in.
  std::int64_t round_ = 0;
  int group_rank_ = 0;
  std::vector<TorchrunNode> members_;  ///< by group rank
  TimePoint met_at_{};
  bool host_told_ = false;
  bool role_told_ = false;
  std::optional<Port> store_port_;  ///< of the worker store that our agent opened for this round
  std::optional<Pair> pair_;        ///< this round's workers' store
  std::optional<TimePoint> change_seen_;
  std::optional<TimePoint> doubt_until_;
  TimePoint barrier_since_{};
  bool counted_out_ = false;

  // What lasts.
  std::optional<Port> kept_port_;       ///< of our worker store in earlier rounds
  std::optional<Pair> former_pair_;     ///< of the last round we met in
  std::optional<TorchrunNode> former_first_;  ///< whose store that is
  int restart_count_ = 0;
  int membership_changes_ = 0;
  std::optional<WorkersFailed> failed_;
  std::optional<Leave> leave_;
};

}  // namespace torchup
