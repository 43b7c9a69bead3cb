#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"

namespace torchup {

/// What a participant of ours in a torchrun agent's store exchanges with the others of a complete round before its
/// workers start: where workers meet, and who has how many. (In a store of ours: core/mixed_meeting.)
///
/// Workers meet on group rank 0's node, as under torchrun: programs open sockets of their own there. The agent of that
/// node opens the store; an agent of ours is asked once (HostStore), and its store serves all later rounds, emptied,
/// for torchrun's agents never read a second address.
///
/// A group rank 0 of torchrun's that has opened its store in an earlier round publishes nothing, since it
/// believes that all know it. Then we publish for it what it published last, so that newcomers find it; others may have
/// been first in the rounds between.
class TorchrunMeeting {
 public:
  TorchrunMeeting(RunId run_id, std::string address) : run_id_{std::move(run_id)}, address_{std::move(address)} {}

  /// A round is complete. `members` by group rank.
  void begin(std::int64_t round, int group_rank, std::vector<TorchrunNode> members, TimePoint now);
  /// The store that was asked for is open.
  void opened(Port port) { own_port_ = port; }

  struct Outcome {
    std::optional<CoordinatorMessage> message = {};  ///< for the agent: HostStore
    std::optional<Placement> placement = {};         ///< all is known; without what this class does not know: restarts
    std::optional<std::string> failure = {};         ///< the round cannot start
  };
  /// Does what can be done now. `may_tell`: false holds our own role back, and with it the start of all workers.
  [[nodiscard]] Result<Outcome> turn(TorchrunStore& store, const Join& join, bool may_tell, TimePoint now);

 private:
  Result<> find_place(TorchrunStore& store, Outcome& outcome, TimePoint now);
  Result<> offer_place(TorchrunStore& store, Outcome& outcome);
  Result<> speak_for_first(TorchrunStore& store);
  Result<> take_ranks(TorchrunStore& store, const Join& join, bool may_tell, Outcome& outcome);
  [[nodiscard]] std::string key(const std::string& name) const { return torchrun_round_key(run_id_, round_, name); }

  RunId run_id_;
  std::string address_;  ///< of this node, as others reach it
  std::optional<Port> own_port_;

  // This round.
  std::int64_t round_ = 0;
  int group_rank_ = 0;
  std::vector<TorchrunNode> members_;
  TimePoint began_at_{};
  bool asked_ = false;
  bool told_ = false;
  std::optional<MeetingPlace> place_;

  // The last round that started.
  std::optional<MeetingPlace> former_place_;
  std::optional<TorchrunNode> former_first_;
};

}  // namespace torchup
