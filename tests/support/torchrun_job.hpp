#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <optional>

#include "rendezvous/core/torchrun/torchrun_care.hpp"
#include "tests/support/torchrun_keys.hpp"

namespace torchup::test {

using namespace std::chrono_literals;

inline const TorchrunNode a{"a", 1, 0}, b{"b", 2, 0}, c{"c", 3, 0};
inline constexpr ClientId client_a{10}, client_b{11}, client_c{12};

/// A job of torchrun's agents, whose writes care sees.
struct CaredJob {
  Keys keys;
  TorchrunCare care{{.run_id = RunId{"job"}}};
  TorchrunState state;

  void write(std::optional<ClientId> client) {
    keys.put(state);
    care.wrote(client, keys);
  }
  void enter(const TorchrunNode& node, ClientId client) {
    state.participants[node] = 0;
    state.last_heartbeats[node] = utc0;
    write(client);
  }
  void complete(ClientId client) {
    state.complete = true;
    std::int64_t rank = 0;
    for (auto& [node, its_rank] : state.participants) its_rank = rank++;
    write(client);
  }
  /// One turn at that time on both clocks.
  void turn(
      Duration at, const std::function<bool(ClientId)>& waits = [](ClientId) { return false; }) {
    care.turn(keys, waits, TimePoint{} + at, utc0 + std::chrono::duration_cast<std::chrono::microseconds>(at));
    state = keys.state();
  }
  /// One of ours, as its machine has it stand.
  void ours_is(const TorchrunNode& node, OurNode::Stage stage, Duration lease) {
    JobTerms terms;
    terms.lease = lease;
    REQUIRE(care.project({{node, stage, 0}}, terms, keys, utc0).has_value());
    state = keys.state();
  }
  void leave(const TorchrunNode& node, ClientId client) {
    remove_node(state, {}, node);
    write(client);
  }
};

}  // namespace torchup::test
