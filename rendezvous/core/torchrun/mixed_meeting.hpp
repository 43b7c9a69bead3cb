#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/torchrun/mixed_parts.hpp"

namespace torchup {

/// What agents of ours exchange with torchrun's of a complete round before its workers start, in a store of ours: where
/// workers meet, and who has how many. Once for all of ours: their roles are published together, and their ranks read.
///
/// Workers meet on group rank 0's node, as under torchrun: programs open sockets of their own there. An agent of ours
/// is asked to open the store once (HostStore), and its store serves all later rounds, emptied. Where the store's owner
/// has a place of its own for workers (TorchrunStore::common_place), that one is published instead. Everything else
/// about the place is the owner's matter (core/torchrun_place).
class MixedMeeting {
 public:
  explicit MixedMeeting(RunId run_id) : run_id_{std::move(run_id)} {}

  /// One of ours that is not placed yet.
  struct Guest {
    MixedParts::Id id = 0;
    int group_rank = 0;
    const Join* join = nullptr;
    std::string address = {};        ///< of its node
    std::optional<Port> store = {};  ///< that it has opened
  };
  struct Outcome {
    std::optional<MixedParts::Id> to_open_store = {};               ///< whom to tell HostStore
    std::vector<std::pair<MixedParts::Id, Placement>> places = {};  ///< without what this does not know: restarts
    std::optional<std::string> failure = {};                        ///< the round cannot start
  };

  /// A round is complete. `members` by group rank.
  void begin(std::int64_t round, std::vector<TorchrunNode> members, TimePoint now);
  /// The coordinator itself was asleep until `now`: who could not be heard has all its time again.
  void slept(TimePoint now) { began_at_ = now; }
  /// Does what can be done now.
  [[nodiscard]] Result<Outcome> turn(TorchrunStore& store, const std::vector<Guest>& guests, TimePoint now);

 private:
  Result<> find_place(TorchrunStore& store, const std::vector<Guest>& guests, Outcome& outcome);
  Result<> tell_roles(TorchrunStore& store, const std::vector<Guest>& guests);
  Result<> take_ranks(TorchrunStore& store, const std::vector<Guest>& guests, Outcome& outcome);
  [[nodiscard]] std::string key(const std::string& name) const { return torchrun_round_key(run_id_, round_, name); }

  RunId run_id_;
  std::int64_t round_ = 0;
  std::vector<TorchrunNode> members_;
  TimePoint began_at_{};
  bool asked_ = false;
  bool told_ = false;
  bool shared_ = false;
  std::optional<MeetingPlace> place_;
};

}  // namespace torchup
