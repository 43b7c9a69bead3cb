#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/torchrun/mixed_round.hpp"
#include "rendezvous/core/torchrun/torchrun_seating.hpp"
#include "tests/support/owned_keys.hpp"

namespace torchup::test {

using namespace std::chrono_literals;

inline JobTerms mixed_terms(int min_nodes, int max_nodes, int max_restarts = 1) {
  return {.min_nodes = min_nodes,
          .max_nodes = max_nodes,
          .max_restarts = max_restarts,
          .join_timeout = 60s,
          .last_call = 2s,
          .lease = 3s};
}

/// An agent that does what torchrun's do, a step at a time. Between its look at the state and its write others may
/// write: then its write is void.
class TheirAgent {
 public:
  enum class Phase { leaving, joining, meeting, running, barrier, over };

  TheirAgent(const std::string& address, std::uint32_t number, const JobTerms& terms)
      : node{address, 1, 0}, client{number}, terms_{.min_nodes = terms.min_nodes,
                                                    .max_nodes = terms.max_nodes,
                                                    .last_call = terms.last_call} {}

  /// One look at the store, or the write that followed from the last one.
  void act(OwnedKeys& keys, UtcTime utc) {
    if (pending_) return write(keys);
    if (phase == Phase::over) return;
    const auto text = keys.find(state_key)->value_or("");
    const auto before = text.empty() ? TorchrunState{} : keys.state();
    if (phase == Phase::running && keys.care.holds(client) && !keys.care.nobody_waits()) return;  // no answer yet
    if (phase == Phase::joining && text.empty()) return;
    TorchrunState state = before;
    if (phase == Phase::joining || phase == Phase::leaving) return move(keys, text, state, utc);
    if (phase == Phase::barrier) return leave_together(keys, state);
    if (state.closed) phase = Phase::over;
    if (phase == Phase::meeting) return meet(keys, state);
    if (phase == Phase::running && (!state.wait_list.empty() || state.round != round)) phase = Phase::leaving;
    if (phase == Phase::running && keep_alive_step(state, terms_, node, utc) == TorchrunStep::write)
      pending_ = {text, state};
  }
  void succeed() {
    if (phase == Phase::running) phase = Phase::barrier;
  }

  const TorchrunNode node;
  const ClientId client;
  Phase phase = Phase::joining;
  std::int64_t round = -1;
  std::vector<std::pair<std::int64_t, std::int64_t>> places;  ///< round and group rank

 private:
  static constexpr const char* state_key = "torch.rendezvous.job";

  std::string key(const std::string& name) const { return torchrun_round_key(RunId{"job"}, round, name); }

  void write(OwnedKeys& keys) {
    const auto [text, state] = *std::exchange(pending_, std::nullopt);
    if (keys.find(state_key)->value_or("") == text) keys.put_as(client, state);
  }
  void move(OwnedKeys& keys, const std::string& text, TorchrunState& state, UtcTime utc) {
    if (phase == Phase::leaving) {
      if (!state.participants.contains(node) || state.round != round) {
        phase = Phase::joining;
      } else if (exit_step(state, terms_, node) == TorchrunStep::write) {
        pending_ = {text, state};
      }
      return;
    }
    const TorchrunStep next = join_step(state, terms_, node, utc, {});
    if (next == TorchrunStep::write) pending_ = {text, state};
    if (next == TorchrunStep::closed) phase = Phase::over;
    if (next != TorchrunStep::done) return;
    round = state.round;
    phase = Phase::meeting;
    places.emplace_back(round, state.participants.at(node));
    const int rank = static_cast<int>(places.back().second);
    keys.map[key(role_name(rank))] = R"({"role": "default", "rank": 0, "local_world_size": 1})";
    if (rank == 0) REQUIRE(publish_place(keys, RunId{"job"}, round, {node.addr, Port{500}}).has_value());
  }
  void meet(OwnedKeys& keys, const TorchrunState& state) {
    if (!state.complete || state.round != round) {
      phase = Phase::leaving;
      return;
    }
    const int rank = static_cast<int>(places.back().second);
    if (rank == 0) {
      const auto shared = share_torchrun_ranks(
          keys, [this](const std::string& name) { return key(name); }, static_cast<int>(state.participants.size()));
      REQUIRE(shared.has_value());
    }
    if (keys.map.contains(key(ranks_name(rank)))) phase = Phase::running;
  }
  void leave_together(OwnedKeys& keys, const TorchrunState& state) {
    if (counted_ != round) {
      counted_ = round;
      const auto size = static_cast<std::int64_t>(state.participants.size());
      if (*keys.add(key(torchrun_key::barrier_count), 1) == size) keys.map[key(torchrun_key::barrier_open)] = "";
    }
    if (keys.map.contains(key(torchrun_key::barrier_open))) phase = Phase::over;
  }

  TorchrunTerms terms_;
  std::optional<std::pair<std::string, TorchrunState>> pending_;
  std::int64_t counted_ = -1;
};

/// Agents of ours in a store of ours, with what decides for them. Time goes by in steps of 100 ms.
struct MixedWorld {
  explicit MixedWorld(const JobTerms& job_terms) : terms{job_terms} {}

  MixedParts::Id enter(const std::string& address) {
    const auto id = next_id++;
    round.enter(id, address, 7);
    say(id, join());
    return id;
  }
  [[nodiscard]] Join join() const {
    Join join;
    join.local_world_size = 2;
    join.terms = terms;
    return join;
  }
  void say(MixedParts::Id id, const AgentMessage& message) { round.said(id, message, now()); }
  [[nodiscard]] TimePoint now() const { return TimePoint{} + elapsed; }
  [[nodiscard]] UtcTime utc() const { return utc0 + std::chrono::duration_cast<std::chrono::microseconds>(elapsed); }

  void turn() {
    auto told = round.turn(keys, now(), utc());
    REQUIRE(told.has_value());
    for (auto& [to, message] : *told) {
      if (std::holds_alternative<Waiting>(message)) continue;
      if (const auto* host = std::get_if<HostStore>(&message)) say(to, StoreReady{host->round, Port{1000}});
      heard[to].push_back(std::move(message));
    }
  }
  /// One step of time; `act` is what torchrun's agents do in it.
  void step() {
    elapsed += 100ms;
    for (TheirAgent* agent : theirs) agent->act(keys, utc());
    keys.turn(now(), utc());
    turn();
  }
  void run(Duration duration) {
    for (const Duration until = elapsed + duration; elapsed < until;) step();
  }
  template <class T>
  [[nodiscard]] const T* last(MixedParts::Id id) {
    return heard[id].empty() ? nullptr : std::get_if<T>(&heard[id].back());
  }

  JobTerms terms;
  OwnedKeys keys;
  MixedRound round{RunId{"job"}};
  std::vector<TheirAgent*> theirs;
  std::map<MixedParts::Id, std::vector<CoordinatorMessage>> heard;
  MixedParts::Id next_id = 0;
  Duration elapsed{};
};

}  // namespace torchup::test
