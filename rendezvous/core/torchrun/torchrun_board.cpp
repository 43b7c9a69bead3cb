#include "rendezvous/core/torchrun/torchrun_board.hpp"

#include <algorithm>
#include <utility>

namespace torchup {

void TorchrunBoard::adopt(const JobTerms& terms) {
  lease_ = terms.lease;
  terms_ = {.min_nodes = terms.min_nodes,
            .max_nodes = terms.max_nodes,
            .last_call = terms.last_call,
            .keep_alive_interval = pace()};
}

/// They take us for dead by their own configuration, which they do not say. Their heartbeats show the interval, or
/// twice as much: one that comes a moment too early leaves out its turn. Until they have shown it, the shortest one is
/// meant.
Duration TorchrunBoard::pace() const {
  const Duration theirs = interval_ ? *interval_ / 2 : torchrun_interval_min;
  return std::clamp(std::min(theirs, lease_ / torchrun_attempts_default), torchrun_interval_min,
                    torchrun_interval_default);
}

Result<> TorchrunBoard::read(TorchrunStore& store, UtcTime now, std::optional<std::int64_t> runs) {
  now_ = now;
  runs_ = runs;
  auto found = store.find(key_);
  if (!found) return found.error();
  if (*found) {
    text_ = **std::move(found);
  } else {
    auto made = store.compare_set(key_, "", std::string{torchrun_no_state});
    if (!made) return made.error();
    text_ = *std::move(made);
  }
  state_ = {};
  if (text_ == torchrun_no_state) return {};
  auto state = state_in_text();
  if (!state) return state.error();
  state_ = *std::move(state);
  learn_interval();
  drop_silent(state_, terms_, now_);
  return {};
}

Result<TorchrunState> TorchrunBoard::state_in_text() {
  const std::size_t hash = std::hash<std::string>{}(text_);
  if (refused_ && refused_->first == hash) return refused_->second;
  ++read_count_;
  const auto bytes = from_base64(text_);
  auto state = bytes ? read_torchrun_state(*bytes) : Result<TorchrunState>{bytes.error()};
  refused_.reset();
  if (!state) refused_.emplace(hash, state.error());
  return state;
}

/// Torchrun's agents do not say after how long they take somebody for dead. We must not be quicker than they are: we go
/// by their defaults until their interval has shown.
void TorchrunBoard::learn_interval() {
  if (state_.complete && state_.round == runs_) {
    for (const auto& [node, heartbeat] : state_.last_heartbeats) {
      const auto before = heartbeats_.find(node);
      if (before == heartbeats_.end() || is_ours(node) || !state_.participants.contains(node)) continue;
      const Duration gap = heartbeat - before->second;
      if (gap >= torchrun_interval_min) interval_ = std::min(gap, interval_.value_or(gap));
    }
    heartbeats_ = state_.last_heartbeats;
  } else {
    heartbeats_.clear();
  }
  terms_.dead_after = std::max(lease_, interval_.value_or(torchrun_interval_default) * torchrun_attempts_default);
  terms_.keep_alive_interval = pace();
}

Result<> TorchrunBoard::write(TorchrunStore& store, const Step& step) {
  for (int i = 0; i < torchrun_steps_max; ++i) {
    if (!step(state_)) return {};
    if (auto stored = put(store); !stored) return stored;
  }
  return {};
}

/// Writes the state that we have changed. Where somebody else was faster, theirs is ours now.
Result<> TorchrunBoard::put(TorchrunStore& store) {
  const std::string text = to_base64(write_torchrun_state(state_));
  auto held = store.compare_set(key_, text_, text);
  if (!held) return held.error();
  if (*held == text) {
    text_ = text;
    return {};
  }
  return read(store, now_, runs_);
}

Result<> close_torchrun_state(TorchrunStore& store, const RunId& run_id) {
  const std::string key = torchrun_state_key(run_id);
  auto found = store.find(key);
  if (!found) return found.error();
  std::string text = found->value_or("");
  for (int i = 0; i < torchrun_steps_max; ++i) {
    const auto bytes = from_base64(text);
    auto state = bytes ? read_torchrun_state(*bytes) : Result<TorchrunState>{bytes.error()};
    if (state && state->closed) return {};
    if (!state) state = TorchrunState{};
    state->closed = true;
    const std::string closed = to_base64(write_torchrun_state(*state));
    auto held = store.compare_set(key, text, closed);
    if (!held) return held.error();
    if (*held == closed) return {};
    text = *std::move(held);
  }
  return fail(errc::limit_exceeded, "others write the state without end");
}

}  // namespace torchup
