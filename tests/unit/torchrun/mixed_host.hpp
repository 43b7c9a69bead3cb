#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/torchrun/mixed_job.hpp"
#include "tests/support/owned_keys.hpp"

/// One run id with scripted agents of ours, which becomes that of a mixed job and ours again, for its tests.
namespace torchup::mixed_host {

using namespace std::chrono_literals;

using test::utc0;
inline const TorchrunNode theirs{"b", 9, 0};

inline Join agent(const std::string& host, int min_nodes = 2, int life = 0) {
  Join join;
  join.node = NodeId{host + "_1_" + std::to_string(life)};
  join.host = host;
  join.local_world_size = 2;
  join.terms = {.min_nodes = min_nodes,
                .max_nodes = 4,
                .max_restarts = 1,
                .join_timeout = 60s,
                .last_call = Duration::zero(),
                .lease = 3s};
  return join;
}

/// One run id, as its coordinator has it.
struct Host {
  std::vector<RendezvousAction> step(const RendezvousEvent& event) {
    const UtcTime utc = utc0 + std::chrono::duration_cast<std::chrono::microseconds>(now - TimePoint{});
    std::vector<RendezvousAction> all;
    const auto add = [&](std::vector<RendezvousAction> actions) {
      for (RendezvousAction& action : actions) {
        hear(action);
        all.push_back(std::move(action));
      }
    };
    if (!mixed.active()) {
      add(pure.step(event, now));
      return all;
    }
    if (std::holds_alternative<Tick>(event)) keys.turn(now, utc);
    add(mixed.step(event, keys, now, utc));
    if (!mixed.over(attended)) return all;
    MixedJob::Rest rest = mixed.give_back(keys);
    pure.take_back(std::move(rest.people), std::move(rest.verdict), now);
    for (const Said& said : rest.early) add(pure.step(said, now));
    return all;
  }
  void connect(std::uint32_t peer) { (void)step(Connected{Peer{peer}, "10.0.0.1", "10.0.0.5"}); }
  void join(std::uint32_t peer, const Join& join) {
    if (!connected.contains(peer)) connect(peer);
    connected.insert(peer);
    (void)step(Said{Peer{peer}, join});
  }
  void pass(Duration duration) {
    for (const TimePoint until = now + duration; now < until;) {
      now += 100ms;
      (void)step(Tick{});
    }
  }
  void begin() {
    for (const RendezvousAction& action : mixed.begin(pure, now)) hear(action);
  }
  void hear(const RendezvousAction& action) {
    const auto* tell = std::get_if<Tell>(&action);
    if (!tell || std::holds_alternative<Waiting>(tell->message)) return;
    heard[tell->peer.value()].push_back(tell->message);
  }
  /// A torchrun agent writes itself into the state.
  void theirs_comes(std::int64_t round = 0) {
    TorchrunState state;
    state.round = round;
    state.participants = {{theirs, 0}};
    state.last_heartbeats = {{theirs, utc0 + 1h}};
    keys.put(state);
    REQUIRE(mixed.wanted(keys, pure));
    begin();
    pass(200ms);
  }
  void close() {
    TorchrunState state = keys.state();
    state.closed = true;
    keys.put(state);
  }
  template <class T>
  [[nodiscard]] const T* last(std::uint32_t peer) {
    return heard[peer].empty() ? nullptr : std::get_if<T>(&heard[peer].back());
  }

  test::OwnedKeys keys;
  Rendezvous pure;
  MixedJob mixed{RunId{"job"}};
  TimePoint now{};
  bool attended = true;
  std::set<std::uint32_t> connected;
  std::map<std::uint32_t, std::vector<CoordinatorMessage>> heard;
};

}  // namespace torchup::mixed_host
