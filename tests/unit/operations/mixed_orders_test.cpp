// Orders in a job that torchrun's agents share.
#include <catch2/catch.hpp>

#include "rendezvous/core/torchrun/mixed_job.hpp"
#include "tests/support/owned_keys.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

const UtcTime utc0 = std::chrono::sys_days{std::chrono::year{2026} / 1 / 1};

/// A job of one agent of ours, a, and one of torchrun's.
struct Mixed {
  Mixed() {
    Rendezvous pure;
    Join join;
    join.host = "a";
    join.node = NodeId{"a_1_0"};
    join.terms = {.min_nodes = 2, .max_nodes = 4, .join_timeout = 60s, .last_call = 2s, .lease = 3s};
    (void)pure.step(Connected{Peer{0}, "10.0.0.1", "10.0.0.5"}, now);
    (void)pure.step(Said{Peer{0}, join}, now);
    TorchrunState state;
    state.participants = {{TorchrunNode{"b", 9, 0}, 0}};
    state.last_heartbeats = {{TorchrunNode{"b", 9, 0}, utc0}};
    keys.put(state);
    (void)job.begin(pure, now);
    pass(100ms);
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

  test::OwnedKeys keys;
  MixedJob job{RunId{"job"}};
  TimePoint now{};
};

std::optional<Verdict> verdict_in(const std::vector<RendezvousAction>& actions) {
  for (const RendezvousAction& action : actions) {
    const auto* tell = std::get_if<Tell>(&action);
    if (const auto* end = tell ? std::get_if<End>(&tell->message) : nullptr) return end->verdict;
  }
  return {};
}

}  // namespace

TEST_CASE("of a job with torchrun's agents nothing can be ordered but its end", "[unit][mixed]") {
  Mixed mixed;
  for (const Order& order : {Order{order::Restart{}}, Order{order::Drain{"a"}}, Order{order::Undrain{"a"}},
                             Order{order::Resize{1, 4}}, Order{order::Stop{.save = true}}}) {
    REQUIRE_FALSE(mixed.job.answer(order).accepted);
    REQUIRE(mixed.job.answer(order).text.find("torchrun") != std::string::npos);
    REQUIRE(mixed.step(Ordered{order, "ada"}).empty());
  }
}

TEST_CASE("a job with torchrun's agents ends when that is ordered", "[unit][mixed]") {
  Mixed mixed;
  const bool at_once = GENERATE(false, true);
  const Order stop = order::Stop{.now = at_once};
  REQUIRE(mixed.job.answer(stop).accepted);
  auto actions = mixed.step(Ordered{stop, "ada"});
  REQUIRE(std::get<Note>(actions.front()) == Note{OrderReceived{"stop", "ada"}});
  std::optional<Verdict> verdict = verdict_in(actions);
  for (int i = 0; i < 50 && !verdict; ++i) verdict = verdict_in(mixed.pass(100ms));
  REQUIRE(verdict.has_value());
  REQUIRE(verdict->exit_code == 143);
  REQUIRE(verdict->reason == "stopped by ada");
  REQUIRE(verdict->kill_now == at_once);
  SECTION("once") {
    for (const Order& more : {Order{order::Restart{}}, Order{order::Resize{1, 4}}, Order{order::Stop{}}}) {
      REQUIRE_FALSE(mixed.job.answer(more).accepted);
      REQUIRE(mixed.job.answer(more).text == "the job has ended: stopped by ada (phase: ended)");
    }
  }
}

}  // namespace torchup
