// Keep-alives of thousands of agents, of which some leave and return: what the round machine costs.
#include "keep_alives.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

#include "rendezvous/core/round/rendezvous.hpp"

namespace torchup::simulation {

using namespace std::chrono_literals;

namespace {

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

}  // namespace

int run_keep_alives(int agents, int minutes) {
  JobTerms terms;
  terms.min_nodes = agents / 2;
  terms.max_nodes = agents;
  terms.join_timeout = std::chrono::hours{1};
  terms.last_call = 60s;
  RendezvousSettings settings;
  settings.agents_max = agents + 1;
  Rendezvous rendezvous{settings};
  TimePoint now{};

  const auto count = static_cast<std::uint32_t>(agents);
  std::vector<std::uint32_t> life(count, 0);
  std::vector<char> present(count, 0);
  std::vector<std::uint32_t> to_join;  // told to stop; joins a second later
  std::uint64_t keep_alives = 0, messages = 0, rounds = 0, lost = 0;
  std::optional<std::pair<std::uint32_t, Round>> store;

  const auto step = [&](const RendezvousEvent& event) {
    for (const RendezvousAction& action : rendezvous.step(event, now)) {
      const auto* tell = std::get_if<Tell>(&action);
      if (!tell) continue;
      ++messages;
      if (const auto* host = std::get_if<HostStore>(&tell->message)) store = {tell->peer.value(), host->round};
      if (const auto* stop = std::get_if<StopWorkers>(&tell->message)) {
        check(stop->cause != StopCause::fenced, "an agent that kept alive was expelled");
        to_join.push_back(tell->peer.value());
      }
      check(!std::get_if<End>(&tell->message), "the job ended");
    }
  };
  const auto join = [&](std::uint32_t agent) {
    Join said;
    said.node = NodeId{"n" + std::to_string(agent) + "_" + std::to_string(life[agent])};
    said.host = "n" + std::to_string(agent);
    said.local_world_size = 8;
    said.terms = terms;
    step(Said{Peer{agent}, said});
  };
  const auto arrive = [&](std::uint32_t agent) {
    ++life[agent];
    present[agent] = 1;
    step(Connected{Peer{agent}, "10.0.0.1", "10.0.0.2", false});
    join(agent);
  };

  std::mt19937 random{1};
  std::vector<std::uint32_t> away;
  for (std::uint32_t agent = 0; agent < count; ++agent) arrive(agent);
  for (int second = 1; second <= 60 * minutes; ++second) {
    // Keep-alives are spread over the second.
    const Duration gap = std::chrono::nanoseconds{std::chrono::seconds{1}} / agents;
    const TimePoint begin = TimePoint{} + std::chrono::seconds{second};
    for (std::uint32_t agent = 0; agent < count; ++agent) {
      now = begin + agent * gap;
      if (!present[agent]) continue;
      ++keep_alives;
      step(Alive{Peer{agent}});
    }
    for (const std::uint32_t agent : std::exchange(to_join, {})) {
      if (present[agent]) join(agent);
    }
    if (store) {
      const auto [agent, round] = *std::exchange(store, {});
      step(Said{Peer{agent}, StoreReady{round, Port{4000}}});
      ++rounds;
    }
    if (second % 60 == 30) {
      for (int i = 0; i < agents / 100; ++i) {
        const auto agent = static_cast<std::uint32_t>(random() % count);
        if (!std::exchange(present[agent], 0)) continue;
        step(Gone{Peer{agent}, true});
        away.push_back(agent);
        ++lost;
      }
    }
    if (second % 60 == 50) {
      for (const std::uint32_t agent : std::exchange(away, {})) arrive(agent);
    }
  }
  check(rounds >= static_cast<std::uint64_t>(minutes), "too few rounds: the run shows nothing");
  std::printf(
      "%d agents, %d minutes: %llu keep-alives, %llu nodes lost and back, %llu rounds, %llu messages, %.1f s CPU\n",
      agents, minutes, static_cast<unsigned long long>(keep_alives), static_cast<unsigned long long>(lost),
      static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(messages), cpu_seconds());
  return 0;
}

}  // namespace torchup::simulation
