#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

#include <algorithm>
#include <vector>

namespace torchup {
namespace {

/// How long a node that comes too late may take to withdraw before it gives up.
constexpr Duration withdrawal = std::chrono::seconds{5};

UtcTime later(UtcTime time, Duration by) { return time + std::chrono::duration_cast<std::chrono::microseconds>(by); }

void after_removal(TorchrunState& state, const TorchrunTerms& terms) {
  if (state.complete && state.participants.empty()) {
    state.complete = false;
    ++state.round;
  }
  if (!state.complete && static_cast<int>(state.participants.size()) < terms.min_nodes) state.deadline.reset();
}

TorchrunStep enter(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node, UtcTime now) {
  state.wait_list.erase(node);
  state.participants[node] = 0;
  state.last_heartbeats[node] = now;
  // Equality, as torchrun has it: the count changes by one at a time.
  const int count = static_cast<int>(state.participants.size());
  if (count == terms.min_nodes) state.deadline = later(now, terms.last_call);
  if (count == terms.max_nodes) complete_round(state);
  return TorchrunStep::write;
}

}  // namespace

std::size_t held_bytes(const TorchrunState& state) {
  std::size_t bytes = 0;
  const auto count = [&](const TorchrunNode& node) {
    constexpr std::size_t entry_bytes = 112;  // with the tree's pointers and the allocator's own
    bytes += entry_bytes + (node.addr.size() < sizeof(std::string) / 2 ? 0 : node.addr.capacity() + 1);
  };
  for (const auto& [node, rank] : state.participants) count(node);
  for (const auto& [node, heartbeat] : state.last_heartbeats) count(node);
  for (const TorchrunNode& node : state.wait_list) count(node);
  for (const TorchrunNode& node : state.redundancy_list) count(node);
  return bytes;
}

void complete_round(TorchrunState& state) {
  state.complete = true;
  state.deadline.reset();
  std::int64_t rank = 0;
  for (auto& [node, its_rank] : state.participants) its_rank = rank++;
}

void drop_silent(TorchrunState& state, const TorchrunTerms& terms, UtcTime now) {
  const UtcTime oldest = later(now, -terms.dead_after);
  std::vector<TorchrunNode> silent;
  for (const auto& [node, heartbeat] : state.last_heartbeats) {
    if (heartbeat < oldest) silent.push_back(node);
  }
  bool was_participant = false;
  for (const TorchrunNode& node : silent) {
    state.last_heartbeats.erase(node);
    was_participant = state.participants.erase(node) > 0 || was_participant;
    state.wait_list.erase(node);
    state.redundancy_list.erase(node);
  }
  if (was_participant) after_removal(state, terms);
}

void remove_node(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node) {
  state.last_heartbeats.erase(node);
  state.wait_list.erase(node);
  state.redundancy_list.erase(node);
  if (state.participants.erase(node) > 0) after_removal(state, terms);
}

TorchrunStep exit_step(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node) {
  if (!state.participants.contains(node)) return TorchrunStep::done;
  state.participants.erase(node);
  state.last_heartbeats.erase(node);
  after_removal(state, terms);
  return TorchrunStep::write;
}

TorchrunStep keep_alive_step(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node, UtcTime now) {
  const auto heartbeat = state.last_heartbeats.find(node);
  if (heartbeat == state.last_heartbeats.end() || heartbeat->second > later(now, -terms.keep_alive_interval)) {
    return TorchrunStep::done;
  }
  heartbeat->second = now;
  return TorchrunStep::write;
}

TorchrunStep seek_step(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node, UtcTime now) {
  const int count = static_cast<int>(state.participants.size());
  if (state.closed) return TorchrunStep::wait;
  if (state.redundancy_list.contains(node)) {
    if (count == terms.max_nodes) return TorchrunStep::wait;
    remove_node(state, terms, node);
    return TorchrunStep::write;
  }
  if (state.participants.contains(node) || (state.complete && state.wait_list.contains(node))) {
    return TorchrunStep::wait;
  }
  if (!state.complete) return enter(state, terms, node, now);
  if (count < terms.max_nodes) {
    state.wait_list.insert(node);
  } else {
    state.redundancy_list.insert(node);
  }
  state.last_heartbeats[node] = now;
  return TorchrunStep::write;
}

TorchrunStep join_step(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node, UtcTime now,
                       std::optional<Duration> overdue) {
  const bool participant = state.participants.contains(node);
  const int count = static_cast<int>(state.participants.size());
  if (state.closed) return TorchrunStep::closed;
  if (!state.redundancy_list.contains(node)) {
    if (state.complete && participant) return TorchrunStep::done;
    if (overdue) {
      if (*overdue > withdrawal || (!participant && !state.wait_list.contains(node))) return TorchrunStep::too_late;
      remove_node(state, terms, node);
      return TorchrunStep::write;
    }
    if (participant && count >= terms.min_nodes && count <= terms.max_nodes && state.deadline &&
        *state.deadline < now) {
      complete_round(state);
      return TorchrunStep::write;
    }
  }
  if (seek_step(state, terms, node, now) == TorchrunStep::write) return TorchrunStep::write;
  return keep_alive_step(state, terms, node, now) == TorchrunStep::write ? TorchrunStep::write : TorchrunStep::wait;
}

}  // namespace torchup
