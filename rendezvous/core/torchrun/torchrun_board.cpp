#include "rendezvous/core/torchrun/torchrun_board.hpp"

#include <algorithm>
#include <utility>

namespace torchup {

void TorchrunBoard::adopt(const JobTerms& terms) {
  lease_ = terms.lease;
  terms_ = {.min_nodes = terms.min_nodes,
            .max_nodes = terms.max_nodes,
            .last_call = terms.last_call,
            .keep_alive_interval = interval_.pace(lease_)};
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
  interval_.learn(state_, runs_);
  terms_.dead_after = interval_.dead_after(lease_);
  terms_.keep_alive_interval = interval_.pace(lease_);
  drop_silent(state_, terms_, now_);
  return {};
}

Result<TorchrunState> TorchrunBoard::state_in_text() {
  const std::size_t hash = std::hash<std::string>{}(text_);
  if (refused_ && refused_->first == hash) return refused_->second;
  ++read_count_;
  auto state = torchrun_state_in(text_);
  refused_.reset();
  if (!state) refused_.emplace(hash, state.error());
  return state;
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

}  // namespace torchup
