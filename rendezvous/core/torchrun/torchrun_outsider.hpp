#pragma once

#include <optional>
#include <vector>

#include "rendezvous/core/torchrun/torchrun_board.hpp"

namespace torchup {

/// What a participant of ours does beyond torchrun's rules in a rendezvous that a torchrun agent owns. (Where the store
/// is ours, its owner does all that: core/torchrun_care.)
///
///  - A participant that is lost makes it call the others to another round: by an entry of its own on the wait list,
///    the only thing that torchrun's agents look at.
///  - One that was wrongly taken for dead, and still runs in a round that is over, is called back in the same way.
///  - A round after the first is complete when all that the state knows have come; the last call is for a job's
///    beginning.
class TorchrunOutsider {
 public:
  /// Whom it acts for, once that participant has a name.
  void act_for(const TorchrunNode& me) {
    me_ = me;
    caller_ = caller_for(me);
  }

  /// While the participant wants a place in the next round. `former`: the members of its last one.
  Result<> gather(TorchrunBoard& board, TorchrunStore& store, const std::vector<TorchrunNode>& former, TimePoint now,
                  UtcTime utc);
  /// The round is complete.
  Result<> formed(TorchrunBoard& board, TorchrunStore& store, TimePoint now);
  /// Whether torchrun's agents may still believe that they are called: until then none of their workers should start.
  [[nodiscard]] bool echoes(TimePoint now) const { return now < echo_until_; }
  /// In a round that cannot go on.
  Result<> call_together(TorchrunBoard& board, TorchrunStore& store, UtcTime utc);
  Result<> dismiss_caller(TorchrunBoard& board, TorchrunStore& store);

 private:
  Result<> call_back(TorchrunBoard& board, TorchrunStore& store, const std::vector<TorchrunNode>& former, TimePoint now,
                     UtcTime utc);
  Result<> cut_last_call(TorchrunBoard& board, TorchrunStore& store, TimePoint now);

  TorchrunNode me_;
  TorchrunNode caller_;
  std::optional<TimePoint> absent_since_;    ///< that somebody of our last round is not in the state
  std::optional<TimePoint> all_here_since_;  ///< that nobody in the state is on the way
  std::size_t here_ = 0;
  TimePoint echo_until_{};
};

}  // namespace torchup
