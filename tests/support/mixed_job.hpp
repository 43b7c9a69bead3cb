#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "rendezvous/core/torchrun/mixed_job.hpp"
#include "tests/support/owned_keys.hpp"
#include "tests/support/torchrun_keys.hpp"

namespace torchup::test {

/// What an agent of ours says that comes into a job which may have so many nodes.
inline Join join_of(int min_nodes, int max_nodes) {
  using namespace std::chrono_literals;
  Join join;
  join.local_world_size = 2;
  join.terms = {.min_nodes = min_nodes, .max_nodes = max_nodes, .join_timeout = 60s, .last_call = 2s, .lease = 3s};
  return join;
}

/// A mixed job of one agent of ours, a, and one of torchrun's, under a clock of its own.
struct Mixed {
  explicit Mixed(int min_nodes = 2) {
    Rendezvous pure;
    Join join = agent("a");
    join.terms.min_nodes = min_nodes;
    (void)pure.step(Connected{Peer{0}, "10.0.0.1", "10.0.0.5"}, now);
    (void)pure.step(Said{Peer{0}, join}, now);
    TorchrunState state;
    state.participants = {{TorchrunNode{"b", 9, 0}, 0}};
    state.last_heartbeats = {{TorchrunNode{"b", 9, 0}, utc0}};
    keys.put(state);
    (void)job.begin(pure, now);
    pass(std::chrono::milliseconds{100});
  }
  static Join agent(const std::string& host, int pid = 1) {
    Join join = join_of(2, 4);
    join.host = host;
    join.node = NodeId{host + "_" + std::to_string(pid) + "_0"};
    return join;
  }
  std::vector<RendezvousAction> step(const RendezvousEvent& event) { return job.step(event, keys, now, utc()); }
  [[nodiscard]] UtcTime utc() const {
    return utc0 + std::chrono::duration_cast<std::chrono::microseconds>(now - TimePoint{});
  }
  std::vector<RendezvousAction> pass(Duration gap) {
    now += gap;
    keys.turn(now, utc());
    return step(Tick{});
  }

  OwnedKeys keys;
  MixedJob job{RunId{"job"}};
  TimePoint now{};
};

}  // namespace torchup::test
