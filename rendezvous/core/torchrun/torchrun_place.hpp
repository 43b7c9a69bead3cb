#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/torchrun/torchrun_store.hpp"

namespace torchup {

/// Where the workers of a job meet whose torchrun agents use a store of ours: what is published for each round, and
/// that it is empty when the round's workers come.
///
/// Torchrun's agents read the address in their first round, and never again; group rank 0 publishes it in the first
/// round that it leads, and never again. And what workers leave in their store stays there for the next attempt. So:
///  - On group rank 0's node (the rule): what the first one published is published again in every round for as long as
///    its agent has a part in the job, even where another node has become group rank 0, and its store is emptied before
///    the roles of the round are passed on, without which no worker starts.
///  - At a common place of ours (`common`): it is published in place of what group rank 0 offers, in every round, and
///    outlives every node, group rank 0's too. But then MASTER_ADDR is no address of group rank 0's node, where
///    programs may open sockets of their own.
///
/// Where the store that is offered does not answer, as with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, a worker is to open
/// it, in every round anew: then it is passed on as it is, and neither is needed.
class TorchrunPlace {
 public:
  TorchrunPlace(RunId run_id, bool common) : run_id_{std::move(run_id)}, common_{common} {}

  /// A round is complete. `members` by group rank.
  void begin(std::int64_t round, const std::vector<TorchrunNode>& members, TorchrunStore& store);

  /// A torchrun agent publishes a part of the place. True: it is not to be stored.
  [[nodiscard]] bool withholds(std::int64_t round, std::string_view name, std::string_view value);
  /// A participant of ours has published a part of the place that its agent opened.
  void published_by_ours(std::int64_t round, std::string_view name, std::string_view value);
  /// From now on workers meet at our common place.
  void adopt() { adopted_ = true; }

  /// A place of which is to be found out whether a store answers there already, to be told by `answered`.
  [[nodiscard]] std::optional<MeetingPlace> question() const;
  /// What is told of another place than the one in question does nothing.
  void answered(const MeetingPlace& about, bool answers, TorchrunStore& store);

  /// Whether the roles of the round are to be held back, since the place is being emptied.
  [[nodiscard]] bool holds_roles() const { return emptying_.has_value(); }
  void turn(TorchrunStore& store);

  /// What was done since the last call, for people.
  [[nodiscard]] std::vector<std::string> notes() { return std::exchange(notes_, {}); }

 private:
  struct Owned {
    TorchrunNode owner;
    MeetingPlace place;
  };

  void publish(const MeetingPlace& place, TorchrunStore& store);
  void answered_for_common(bool answers, const MeetingPlace& theirs, TorchrunStore& store);

  RunId run_id_;
  bool common_;
  std::int64_t round_ = -1;
  std::vector<TorchrunNode> members_;
  std::string offered_address_;
  std::optional<Owned> offered_;  ///< in question
  std::int64_t offered_in_ = 0;
  std::optional<Owned> kept_;  ///< an agent's store, which is published again
  bool adopted_ = false;
  std::optional<MeetingPlace> emptying_;
  std::vector<std::string> notes_;
};

}  // namespace torchup
