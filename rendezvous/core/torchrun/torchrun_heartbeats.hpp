#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

namespace torchup {

/// After how long torchrun's agents take somebody for dead: by their own configuration, which they do not say. Their
/// heartbeats show the interval, or twice as much: one that comes a moment too early leaves out its turn.
class TorchrunInterval {
 public:
  /// A state as a participant found it. `runs`: the round in which every torchrun agent keeps to its interval.
  void learn(const TorchrunState& state, std::optional<std::int64_t> runs);
  /// The same, told by the store's owner, who knows what the writer itself has changed.
  void learn(const TorchrunState& former, const TorchrunState& state, const TorchrunNode& writer);

  /// We must not be quicker than they are: until their interval has shown we go by their defaults. `lease`: ours.
  [[nodiscard]] Duration dead_after(Duration lease) const;
  /// How often a node of ours should send heartbeats. Until they have shown their interval, the shortest one is meant.
  [[nodiscard]] Duration pace(Duration lease) const;

 private:
  void heard(const TorchrunNode& node, UtcTime heartbeat);

  std::map<TorchrunNode, UtcTime> heartbeats_;  ///< as last seen in this round
  std::optional<Duration> interval_;            ///< as far as it has shown
};

/// Whose heartbeat does not change, by the clock of whoever looks: neither a node's clock nor the day's matters.
class TorchrunSilence {
 public:
  /// To be called some times a second. Who has been silent for `limit`; nobody where the caller itself was asleep, for
  /// what they have written may lie unread before it.
  [[nodiscard]] std::vector<TorchrunNode> look(const TorchrunState& state, Duration limit, TimePoint now);
  void forget() { heard_.clear(); }

 private:
  struct Heard {
    UtcTime heartbeat;
    TimePoint at;
  };
  std::map<TorchrunNode, Heard> heard_;
  TimePoint looked_at_{};
};

}  // namespace torchup
