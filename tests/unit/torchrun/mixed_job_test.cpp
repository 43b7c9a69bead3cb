#include "rendezvous/core/torchrun/mixed_job.hpp"

#include <catch2/catch.hpp>

#include "tests/support/mixed_job.hpp"

namespace torchup {
namespace {

using namespace std::chrono_literals;

using test::join_of;
using test::utc0;

}  // namespace

TEST_CASE("a job becomes mixed while a round of our agents runs", "[unit][mixed]") {
  Rendezvous pure;
  Join join = join_of(1, 2);
  join.terms.last_call = Duration::zero();
  const auto hear = [&](const RendezvousEvent& event) { return pure.step(event, TimePoint{} + 10s); };
  (void)hear(Connected{Peer{0}, "10.0.0.1", "10.0.0.5"});
  (void)hear(Connected{Peer{1}, "10.0.0.2", "10.0.0.5"});  // has not joined yet
  (void)hear(Said{Peer{0}, join});
  (void)hear(Said{Peer{0}, StoreReady{Round{0}, Port{1}}});
  REQUIRE(pure.phase() == Rendezvous::Phase::running);

  const auto stops = [&] {
    MixedJob job{RunId{"job"}};
    int count = 0;
    for (const RendezvousAction& action : job.begin(pure, TimePoint{} + 10s)) {
      const auto* tell = std::get_if<Tell>(&action);
      if (!tell) continue;
      REQUIRE(tell->peer == Peer{0});
      REQUIRE(std::get<StopWorkers>(tell->message).round == Round{0});
      ++count;
    }
    REQUIRE(job.member_count() == 0);  // it joins again when it has stopped
    return count;
  };
  REQUIRE(stops() == 1);
  join.node = NodeId{"another"};
  (void)hear(Said{Peer{1}, join});
  (void)pure.step(Tick{}, TimePoint{} + 20s);  // the newcomer's turn: all stop
  REQUIRE(pure.phase() == Rendezvous::Phase::gathering);
  MixedJob job{RunId{"job"}};
  (void)job.begin(pure, TimePoint{} + 20s);
  REQUIRE(job.member_count() == 1);  // the newcomer; the other is stopping
}

TEST_CASE("our agents' job becomes a mixed one", "[unit][mixed]") {
  test::OwnedKeys keys;
  MixedJob job{RunId{"job"}};
  Rendezvous pure;
  Join join = join_of(2, 2);
  join.node = NodeId{"a_1_0"};
  join.host = "a";
  join.addresses = {"10.0.0.1"};
  const Connected connected{Peer{0}, "10.0.0.1", "10.0.0.5"};
  const Said said{Peer{0}, join};
  for (const RendezvousEvent& event : std::vector<RendezvousEvent>{connected, said}) {
    (void)pure.step(event, TimePoint{});
  }
  REQUIRE_FALSE(job.wanted(keys, pure));
  TorchrunState state;
  const TorchrunNode theirs{"b", 9, 0};
  const int round = GENERATE(0, 3);
  state.round = round;
  state.participants = {{theirs, 0}};
  state.last_heartbeats = {{theirs, utc0}};
  keys.put(state);
  REQUIRE(job.wanted(keys, pure));
  REQUIRE(job.begin(pure, TimePoint{}).size() == 1);  // a note: nobody runs
  const auto actions = job.step(Tick{}, keys, TimePoint{} + 100ms, utc0 + 100ms);
  REQUIRE(keys.state().complete);
  REQUIRE(keys.state().participants.at(theirs) == (round == 0 ? 1 : 0));  // in a later round the first stays the first
  if (round == 0) {
    const auto* host = std::get_if<Tell>(&actions.front());  // workers meet on the node of group rank 0, which is ours
    REQUIRE(host);
    REQUIRE(host->message == CoordinatorMessage{HostStore{Round{0}}});
    (void)job.step(Said{Peer{0}, StoreReady{Round{0}, Port{77}}}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    REQUIRE(keys.map.at("torch.rendezvous.job.0/MASTER_ADDR") == "10.0.0.1");
    REQUIRE(keys.map.at("torch.rendezvous.job.0/MASTER_PORT") == "77");
  }

  SECTION("an agent that ends frees its place") {
    (void)job.step(Gone{Peer{0}, true}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    REQUIRE(keys.state().participants.size() == 1);
    REQUIRE(job.member_count() == 0);
  }
  const auto resume = [&](Peer peer) {
    (void)job.step(Connected{peer, "10.0.0.1", "10.0.0.5"}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    (void)job.step(Resumed{peer, {.join = join}}, keys, TimePoint{} + 200ms, utc0 + 200ms);
  };
  SECTION("one that restates a place that it does not name is no harm") {
    const auto stage = GENERATE(Resume::Stage::succeeded, Resume::Stage::failed, Resume::Stage::running);
    (void)job.step(Connected{Peer{1}, "10.0.0.1", "10.0.0.5"}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    (void)job.step(Resumed{Peer{1}, {.join = join, .stage = stage}}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    REQUIRE(job.member_count() == 1);
    Join stranger = join;
    stranger.node = NodeId{"b_2_0"};
    (void)job.step(Connected{Peer{2}, "10.0.0.1", "10.0.0.5"}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    (void)job.step(Resumed{Peer{2}, {.join = stranger, .stage = stage}}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    REQUIRE(job.member_count() == 1);
    // By the same connection it is what the agent has become.
    (void)job.step(Resumed{Peer{1}, {.join = stranger, .stage = stage}}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    REQUIRE(job.member_count() == 0);
  }
  SECTION("what a former connection brings late takes nobody's place") {
    resume(Peer{1});
    (void)job.step(Said{Peer{0}, join}, keys, TimePoint{} + 300ms, utc0 + 300ms);
    (void)job.step(Gone{Peer{0}, true}, keys, TimePoint{} + 400ms, utc0 + 400ms);
    REQUIRE(job.member_count() == 1);
    REQUIRE(keys.state().participants.size() == 2);
  }
  SECTION("one that is back in time, and joins, keeps its place") {
    (void)job.step(Gone{Peer{0}, false}, keys, TimePoint{} + 200ms, utc0 + 200ms);
    (void)job.step(Connected{Peer{1}, "10.0.0.1", "10.0.0.5"}, keys, TimePoint{} + 300ms, utc0 + 300ms);
    (void)job.step(Said{Peer{1}, join}, keys, TimePoint{} + 300ms, utc0 + 300ms);
    (void)job.step(Tick{}, keys, TimePoint{} + 2s, utc0 + 2s);
    REQUIRE(job.member_count() == 1);
  }
  SECTION("one that is silent is told so") {
    std::vector<RendezvousAction> later;
    for (auto at = 200ms; at <= 4s; at += 100ms) {
      for (auto& action : job.step(Tick{}, keys, TimePoint{} + at, utc0 + at)) later.push_back(std::move(action));
    }
    REQUIRE(std::ranges::any_of(later, [&](const RendezvousAction& action) {
      const auto* tell = std::get_if<Tell>(&action);
      const auto* stop = tell ? std::get_if<StopWorkers>(&tell->message) : nullptr;
      return stop && stop->cause == StopCause::fenced &&
             stop->round == Round{round};  // it obeys for its own round only
    }));
    REQUIRE(job.member_count() == 0);
  }
}

namespace {

struct Mixed : test::Mixed {
  using test::Mixed::Mixed;
  std::vector<RendezvousAction> join(Peer peer, const Join& join) {
    (void)step(Connected{peer, "10.0.0.2", "10.0.0.5"});
    return step(Said{peer, join});
  }
  static const Refuse* refusal(const std::vector<RendezvousAction>& actions) {
    for (const RendezvousAction& action : actions) {
      if (const auto* refuse = std::get_if<Refuse>(&action)) return refuse;
    }
    return nullptr;
  }
};

}  // namespace

TEST_CASE("a mixed job takes no agent that a job of ours would not", "[unit][mixed]") {
  Mixed mixed;
  Join join = Mixed::agent("c");
  SECTION("with other terms") { join.terms.max_nodes = 5; }
  SECTION("with another's node id") { join.node = Mixed::agent("a").node; }
  SECTION("that cannot be meant") { join.terms.lease = -1s; }
  const auto actions = mixed.join(Peer{1}, join);
  REQUIRE(Mixed::refusal(actions));
  REQUIRE(Mixed::refusal(actions)->exit_code == 68);
  REQUIRE(mixed.job.member_count() == 1);
}

TEST_CASE("a node id is one agent's of a mixed job, too", "[unit][mixed]") {
  Mixed mixed;
  REQUIRE(Mixed::refusal(mixed.join(Peer{1}, Mixed::agent("a"))));
  (void)mixed.step(Gone{Peer{0}, false});
  REQUIRE_FALSE(Mixed::refusal(mixed.join(Peer{2}, Mixed::agent("a"))));
  REQUIRE(mixed.job.member_count() == 1);
}

TEST_CASE("a connection speaks for one agent of a mixed job", "[unit][mixed]") {
  Mixed mixed;
  for (int pid = 2; pid < 50; ++pid) (void)mixed.step(Said{Peer{0}, Mixed::agent("a", pid)});
  REQUIRE(mixed.job.member_count() == 1);
  REQUIRE(mixed.keys.state().participants.size() == 2);
}

TEST_CASE("a mixed job has room for so many agents of ours", "[unit][mixed]") {
  Mixed mixed;
  int refused = 0;
  for (std::uint32_t peer = 1; peer <= 256; ++peer) {
    refused += Mixed::refusal(mixed.join(Peer{peer}, Mixed::agent("n" + std::to_string(peer)))) != nullptr;
  }
  REQUIRE(refused == 1);
  REQUIRE(mixed.job.member_count() == 256);
}

TEST_CASE("a mixed job's verdict tells no more than one of ours, the root cause first", "[unit][mixed]") {
  test::OwnedKeys keys;
  MixedJob job{RunId{"job"}};
  Rendezvous pure;
  for (std::uint32_t number = 0; number < 2; ++number) {
    (void)pure.step(Connected{Peer{number}, "10.0.0.1", "10.0.0.5"}, TimePoint{});
    Join join = join_of(3, 3);
    join.node = NodeId{"a_" + std::to_string(number) + "_0"};
    join.host = "host" + std::to_string(number);
    (void)pure.step(Said{Peer{number}, join}, TimePoint{});
  }
  (void)job.begin(pure, TimePoint{});
  Leave leave{.exit_code = 1, .reason = "enough"};
  for (std::size_t i = 0; i <= failures_kept_max; ++i) {
    leave.failures.push_back({.rank = Rank{static_cast<int>(i)},
                              .host = "host0",
                              .message = std::string(2 << 20, 'x'),
                              .consequence = i < 2});
  }
  std::vector<Verdict> told;
  for (const RendezvousAction& action : job.step(Said{Peer{0}, leave}, keys, TimePoint{} + 100ms, utc0)) {
    const auto* tell = std::get_if<Tell>(&action);
    const auto* end = tell ? std::get_if<End>(&tell->message) : nullptr;
    if (end) told.push_back(end->verdict);
  }
  REQUIRE(told.size() == 2);
  for (const Verdict& verdict : told) {
    REQUIRE(verdict.failures.size() == failures_kept_max);
    REQUIRE(verdict.failures.front().rank == Rank{2});
    REQUIRE(held_bytes(verdict) <= verdict_told_bytes_max / 2);
    REQUIRE(held_bytes(verdict) > verdict_told_bytes_max / 3);
  }
}

TEST_CASE("an agent that starts again takes the place of the silent one on its host", "[unit][mixed]") {
  Mixed mixed;
  (void)mixed.step(Gone{Peer{0}, false});
  (void)mixed.join(Peer{1}, Mixed::agent("a", 2));
  REQUIRE(mixed.job.member_count() == 1);
  REQUIRE(mixed.keys.state().participants.size() == 2);
}

TEST_CASE("what a node said before it knew that a mixed job gave it up is void", "[unit][mixed]") {
  Mixed mixed;
  for (int i = 0; i < 40; ++i) (void)mixed.pass(100ms);
  REQUIRE(mixed.job.member_count() == 0);
  (void)mixed.step(Said{Peer{0}, Mixed::agent("a")});
  REQUIRE(mixed.job.member_count() == 0);
  Join next = Mixed::agent("a");
  next.node = NodeId{"a_1_1"};
  (void)mixed.step(Said{Peer{0}, next});
  REQUIRE(mixed.job.member_count() == 1);
}

TEST_CASE("a coordinator that was asleep gives nobody of a mixed job up", "[unit][mixed]") {
  Mixed mixed;
  (void)mixed.pass(10s);
  REQUIRE(mixed.job.member_count() == 1);
  for (int i = 0; i < 40; ++i) (void)mixed.pass(100ms);
  REQUIRE(mixed.job.member_count() == 0);
}

TEST_CASE("a coordinator that was asleep ends no mixed job by its own join timeout", "[unit][mixed]") {
  Mixed mixed{3};
  (void)mixed.pass(10min);
  REQUIRE_FALSE(mixed.job.verdict());
  for (int i = 0; i < 31; ++i) {
    REQUIRE_FALSE(mixed.job.verdict());
    (void)mixed.step(Alive{Peer{0}});
    (void)mixed.pass(100ms);
  }
  REQUIRE(mixed.job.verdict());
  REQUIRE(mixed.job.verdict()->exit_code == 66);
}

TEST_CASE("a mixed job keeps nothing of agents that have left", "[unit][mixed]") {
  Mixed mixed;
  Leave leave{.ends_job = false, .exit_code = 1};
  for (int rank = 0; rank < 64; ++rank) {
    leave.failures.push_back({.rank = Rank{rank}, .host = "h", .message = std::string(7000, 'x')});
  }
  std::size_t with_it = 0;
  const auto come_and_go = [&](int life) {
    Join join = Mixed::agent("c", life);
    join.terms.hostlist = std::string(64'000, 'a');
    REQUIRE_FALSE(Mixed::refusal(mixed.join(Peer{1}, join)));
    REQUIRE(mixed.job.member_count() == 2);
    with_it = mixed.job.held_bytes();
    (void)mixed.step(Said{Peer{1}, leave});
    (void)mixed.step(Gone{Peer{1}, true});
    (void)mixed.step(Alive{Peer{0}});
    REQUIRE(mixed.job.member_count() == 1);
  };
  come_and_go(1);
  const std::size_t held = mixed.job.held_bytes();
  REQUIRE(with_it - held >= 2 * held_bytes(as_kept(Mixed::agent("c"))));  // what plays its part has a join of its own
  REQUIRE(with_it - held < 64'000);                                       // and no host list
  for (int life = 2; life < 50; ++life) come_and_go(life);
  REQUIRE(mixed.job.held_bytes() == held);
}

TEST_CASE("what an agent of a mixed job was told at last is counted", "[unit][mixed]") {
  Mixed mixed;
  Leave leave{.ends_job = true, .exit_code = 0};
  leave.failures.push_back({.host = "h", .message = std::string(100'000, 'x')});
  const std::size_t before = mixed.job.held_bytes();
  (void)mixed.step(Said{Peer{0}, leave});
  REQUIRE(mixed.job.member_count() == 1);
  REQUIRE(mixed.job.held_bytes() > before + 190'000);  // for it, and for those who come late
}

TEST_CASE("a host that a mixed job loses too often is put aside", "[unit][mixed]") {
  Mixed mixed;
  for (int i = 0; i < 25; ++i) (void)mixed.pass(100ms);
  REQUIRE(mixed.keys.state().complete);
  const auto put_aside = [](const std::vector<RendezvousAction>& actions) {
    return std::ranges::any_of(actions, [](const RendezvousAction& action) {
      const auto* note = std::get_if<Note>(&action);
      return note && std::holds_alternative<NodePutAside>(*note);
    });
  };
  for (std::uint32_t life = 1; life <= 3; ++life) {
    REQUIRE_FALSE(put_aside(mixed.join(Peer{life}, Mixed::agent("c", static_cast<int>(life)))));
    REQUIRE(mixed.job.member_count() == 2);
    (void)mixed.step(Gone{Peer{life}, true});
    REQUIRE(mixed.job.member_count() == 1);
  }
  REQUIRE(put_aside(mixed.join(Peer{4}, Mixed::agent("c", 4))));
  REQUIRE(mixed.job.member_count() == 2);
  REQUIRE(mixed.keys.state().wait_list.empty());  // the others do without it
}

TEST_CASE("where the store of a mixed job cannot be used, it ends for torchrun's agents, too", "[unit][mixed]") {
  Mixed mixed;
  const std::string key = "torch.rendezvous.job";
  bool readable = false;
  SECTION("since what stands there is no state") { mixed.keys.map[key] = "bm9uZQ=="; }
  SECTION("since a role is none") {
    readable = true;
    for (int i = 0; i < 25; ++i) (void)mixed.pass(100ms);
    (void)mixed.step(Said{Peer{0}, StoreReady{Round{0}, Port{77}}});
    mixed.keys.map[key + ".0/torchelastic/role_info/0"] = "none";
    mixed.keys.map[key + ".0/torchelastic/role_info/1"] = "none";
  }
  std::vector<RendezvousAction> told;
  for (int i = 0; i < 10; ++i) std::ranges::move(mixed.pass(100ms), std::back_inserter(told));
  const auto ends = std::ranges::count_if(told, [](const RendezvousAction& action) {
    const auto* tell = std::get_if<Tell>(&action);
    const auto* end = tell ? std::get_if<End>(&tell->message) : nullptr;
    return end && end->verdict.exit_code == 68;
  });
  REQUIRE(ends == 1);
  REQUIRE(mixed.keys.map[key] != "bm9uZQ==");
  REQUIRE(mixed.keys.state().closed);
  REQUIRE(mixed.keys.state().participants.size() == (readable ? 2 : 0));
}

TEST_CASE("what a node of a mixed job and its coordinator have missed of each other is said again", "[unit][mixed]") {
  Mixed mixed;
  for (int i = 0; i < 25; ++i) (void)mixed.pass(100ms);
  REQUIRE(mixed.keys.state().complete);
  (void)mixed.step(Gone{Peer{0}, false});
  (void)mixed.step(Connected{Peer{1}, "10.0.0.1", "10.0.0.5"});
  const auto told = mixed.step(Resumed{Peer{1}, {.join = Mixed::agent("a"), .store = StoreReady{Round{0}, Port{77}}}});
  REQUIRE(std::ranges::count(told, RendezvousAction{Tell{Peer{1}, HostStore{Round{0}}}}) == 1);
  (void)mixed.pass(100ms);
  REQUIRE(mixed.keys.map["torch.rendezvous.job.0/MASTER_PORT"] == "77");
}

}  // namespace torchup
