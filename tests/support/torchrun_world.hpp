#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/torchrun/torchrun_peer.hpp"
#include "tests/support/torchrun_keys.hpp"

namespace torchup::test {

using namespace std::chrono_literals;

struct Node {
  Node(std::string address, std::int64_t pid, int min_nodes, int max_nodes, int max_restarts = 0)
      : peer{{.run_id = RunId{"job"}, .address = std::move(address), .pid = pid}} {
    join.terms = {.min_nodes = min_nodes,
                  .max_nodes = max_nodes,
                  .max_restarts = max_restarts,
                  .join_timeout = 60s,
                  .last_call = 2s,
                  .lease = 3s};
    join.local_world_size = 2;
  }

  void say(const AgentMessage& message) { peer.said(message, TimePoint{}); }

  TorchrunPeer peer;
  Join join;
  std::vector<CoordinatorMessage> heard;

  template <class T>
  [[nodiscard]] const T* last() const {
    for (auto at = heard.rbegin(); at != heard.rend(); ++at) {
      if (const auto* message = std::get_if<T>(&*at)) return message;
    }
    return nullptr;
  }
};

/// Time goes by in steps of 100 ms; each node takes its turn.
struct World {
  Keys keys;
  std::vector<Node*> nodes;
  Duration elapsed{};

  void run(Duration duration) {
    for (const Duration until = elapsed + duration; elapsed < until; elapsed += 100ms) {
      for (Node* node : nodes) turn(*node);
    }
  }
  void turn(Node& node) {
    const auto told = node.peer.turn(keys, TimePoint{} + elapsed,
                                     utc0 + std::chrono::duration_cast<std::chrono::microseconds>(elapsed));
    REQUIRE(told.has_value());
    for (const CoordinatorMessage& message : *told) {
      node.heard.push_back(message);
      if (const auto* host = std::get_if<HostStore>(&message)) say(node, StoreReady{host->round, Port{1000}});
    }
  }
  void say(Node& node, const AgentMessage& message) { node.peer.said(message, TimePoint{} + elapsed); }
};

}  // namespace torchup::test
