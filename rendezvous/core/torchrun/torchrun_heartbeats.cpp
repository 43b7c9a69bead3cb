#include "rendezvous/core/torchrun/torchrun_heartbeats.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/torchrun/torchrun_store.hpp"

namespace torchup {

void TorchrunInterval::learn(const TorchrunState& state, std::optional<std::int64_t> runs) {
  if (!state.complete || state.round != runs) return heartbeats_.clear();
  std::erase_if(heartbeats_, [&](const auto& entry) { return !state.participants.contains(entry.first); });
  for (const auto& [node, heartbeat] : state.last_heartbeats) {
    if (!is_ours(node) && state.participants.contains(node)) heard(node, heartbeat);
  }
}

void TorchrunInterval::learn(const TorchrunState& former, const TorchrunState& state, const TorchrunNode& writer) {
  if (!state.complete || !former.complete) heartbeats_.clear();
  const auto before = former.last_heartbeats.find(writer), now = state.last_heartbeats.find(writer);
  const bool its_own =
      before != former.last_heartbeats.end() && now != state.last_heartbeats.end() && before->second != now->second;
  if (its_own && state.complete && state.participants.contains(writer)) heard(writer, now->second);
}

void TorchrunInterval::heard(const TorchrunNode& node, UtcTime heartbeat) {
  const auto [before, first] = heartbeats_.try_emplace(node, heartbeat);
  const Duration gap = heartbeat - std::exchange(before->second, heartbeat);
  if (!first && gap >= torchrun_interval_min) interval_ = std::min(gap, interval_.value_or(gap));
}

Duration TorchrunInterval::dead_after(Duration lease) const {
  return std::max(lease, interval_.value_or(torchrun_interval_default) * torchrun_attempts_default);
}

Duration TorchrunInterval::pace(Duration lease) const {
  const Duration theirs = interval_ ? *interval_ / 2 : torchrun_interval_min;
  return std::clamp(std::min(theirs, lease / torchrun_attempts_default), torchrun_interval_min,
                    torchrun_interval_default);
}

std::vector<TorchrunNode> TorchrunSilence::look(const TorchrunState& state, Duration limit, TimePoint now) {
  const bool slept = now - std::exchange(looked_at_, now) > limit / 4;
  std::map<TorchrunNode, Heard> heard;
  std::vector<TorchrunNode> silent;
  for (const auto& [node, heartbeat] : state.last_heartbeats) {
    const auto before = heard_.find(node);
    const bool news = before == heard_.end() || before->second.heartbeat != heartbeat || slept;
    const TimePoint at = news ? now : before->second.at;
    if (now - at >= limit) silent.push_back(node);
    heard.emplace(node, Heard{heartbeat, at});
  }
  heard_ = std::move(heard);
  return silent;
}

}  // namespace torchup
