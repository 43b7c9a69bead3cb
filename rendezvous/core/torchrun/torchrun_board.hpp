#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/torchrun/torchrun_heartbeats.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

namespace torchup {

/// The state that torchrun's agents share, as a participant of ours in a torchrun agent's store reads and writes it: a
/// copy, without the nodes that are silent, and the text that stood in the store when it was read.
class TorchrunBoard {
 public:
  explicit TorchrunBoard(const RunId& run_id) : key_{torchrun_state_key(run_id)} {}

  /// The participant's own terms, those of its last Join.
  void adopt(const JobTerms& terms);
  /// Reads the state. `runs`: the round that the participant's workers run in. As long as it goes on, every torchrun
  /// agent keeps to its interval, from which we learn when they take a silent one for dead.
  Result<> read(TorchrunStore& store, UtcTime now, std::optional<std::int64_t> runs);

  /// One step on the copy: true when it has changed it, to be written and asked again.
  using Step = std::function<bool(TorchrunState&)>;
  /// Takes steps until there is none to take. Where somebody else was faster, the next step is taken on their state.
  Result<> write(TorchrunStore& store, const Step& step);

  [[nodiscard]] const TorchrunState& state() const { return state_; }
  /// Texts that were read as a state; one that is none is read once.
  [[nodiscard]] std::size_t read_count() const { return read_count_; }
  [[nodiscard]] const TorchrunTerms& terms() const { return terms_; }

 private:
  [[nodiscard]] Result<TorchrunState> state_in_text();
  [[nodiscard]] Result<> put(TorchrunStore& store);

  std::string key_;
  TorchrunTerms terms_;
  Duration lease_{};
  TorchrunState state_;
  std::string text_;  ///< what the store held when the state was read
  /// By its hash, the text that is no state, and why: it costs as much each time.
  std::optional<std::pair<std::size_t, Error>> refused_;
  std::size_t read_count_ = 0;
  UtcTime now_{};
  std::optional<std::int64_t> runs_;
  TorchrunInterval interval_;  ///< of torchrun's agents
};

/// Longest sequence of steps and lost writes in one turn.
inline constexpr int torchrun_steps_max = 64;

}  // namespace torchup
