// What agents of other processes tell takes up so much.
#include <boost/asio/io_context.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/coordinator/coordinator_job.hpp"
#include "tests/support/long_running.hpp"
#include "tests/support/owned_keys.hpp"

using namespace torchup;
using namespace std::chrono_literals;

namespace {

Join join_of(const std::string& host, JobTerms terms) {
  Join join;
  join.host = host;
  join.terms = std::move(terms);
  return join;
}

/// An agent of another process.
struct Stranger final : Coordinator::Listener {
  Stranger(Coordinator& coordinator, const std::string& run_id)
      : attendance{coordinator.open(RunId{run_id}, {.observed = "10.0.0.1"}, *this)} {}
  void tell(CoordinatorMessage message) override { heard.push_back(std::move(message)); }
  void refuse(int, std::string reason) override { refusal = std::move(reason); }
  void let_go(std::string) override {}

  std::vector<CoordinatorMessage> heard = {};
  std::string refusal = {};
  std::unique_ptr<Coordinator::Attendance> attendance;
};

/// With as many facts as a node may have, each as long as it may be.
Join talkative(const std::string& host) {
  Join join = join_of(host, {.min_nodes = 60'000, .max_nodes = 60'000, .lease = 24h});
  join.node = NodeId{host + "_1_0"};
  for (std::size_t i = 0; i < facts_max; ++i) join.facts.push_back({std::string(256, 'n'), std::string(256, 'v')});
  return join;
}

}  // namespace

TEST_CASE("what agents tell has a limit over all jobs", "[net][coordinator][many]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  Stranger proper{coordinator, "proper"};
  Join modest = join_of("modest", {});
  modest.node = NodeId{"modest_1_0"};
  proper.attendance->said(modest);
  REQUIRE(proper.refusal.empty());
  std::vector<std::unique_ptr<Stranger>> crowd;
  const auto come = [&] {
    const std::string host = "h" + std::to_string(crowd.size());
    crowd.push_back(std::make_unique<Stranger>(coordinator, "job" + std::to_string(crowd.size() % 3)));
    crowd.back()->attendance->said(talkative(host));
    if (crowd.size() % 2 == 0) crowd.back()->attendance->gone(false);  // it may come back for a day
    return crowd.back()->refusal.empty();
  };
  constexpr std::size_t told_bytes_min = facts_max * 512;
  while (come()) REQUIRE(crowd.size() * told_bytes_min < told_bytes_max);
  REQUIRE(crowd.size() * told_bytes_min > told_bytes_max / 2);
  REQUIRE(crowd.back()->refusal.starts_with("told_bytes_max: "));

  SECTION("and addresses count, which are remembered when nobody has them any more") {
    Join moved = modest;
    for (int i = 0; i < 5000 && proper.refusal.empty(); ++i) {
      moved.addresses = {"10.0." + std::to_string(i / 250) + "." + std::to_string(i % 250)};
      proper.attendance->said(moved);
    }
    REQUIRE(proper.refusal.starts_with("told_bytes_max: "));
  }
  SECTION("within which who is a member joins again") {
    crowd[0]->attendance->said(talkative("h0"));
    REQUIRE(crowd[0]->refusal.empty());
    Join longer = modest;
    longer.facts = talkative("x").facts;
    proper.attendance->said(longer);
    REQUIRE_FALSE(proper.refusal.empty());
  }
  SECTION("beyond which a failure is told in short") {
    REQUIRE_FALSE(proper.heard.empty());
    REQUIRE(std::holds_alternative<HostStore>(proper.heard.back()));
    proper.attendance->said(StoreReady{Round{0}, Port{4000}});
    WorkersFailed failed{.round = Round{0}};
    for (int i = 0; i < static_cast<int>(failures_told_max); ++i) {
      failed.failures.push_back({.rank = Rank{i},
                                 .exit_code = 3,
                                 .host = "modest",
                                 .message = std::string(5000, 'x'),
                                 .error_file = std::string(4000, 'y')});
    }
    proper.attendance->said(failed);
    const auto* const end = std::get_if<End>(&proper.heard.back());
    REQUIRE(end);
    REQUIRE(end->verdict.failures.at(0).exit_code == 3);
    REQUIRE(end->verdict.failures.at(0).message.size() < 300);
    REQUIRE(end->verdict.failures.at(0).error_file.empty());
  }
  SECTION("and who leaves makes room") {
    for (std::size_t i = 0; i < 4; ++i) crowd[i]->attendance->gone(true);
    REQUIRE(come());
  }
  SECTION("and a job that is forgotten counts no more") {
    for (std::size_t i = 0; i < 4; ++i) crowd[i]->attendance->gone(true);
    Join known = modest;
    for (std::size_t i = 0; i < addresses_max; ++i) known.addresses.push_back("10.0.0." + std::to_string(i));
    for (int i = 0; i < 400; ++i) {
      Stranger passing{coordinator, "another"};
      passing.attendance->said(known);
      REQUIRE(passing.refusal.empty());
    }
  }
}

TEST_CASE("what agents answer to looks has a limit over all jobs", "[net][coordinator]") {
  const std::string part = pack_looks(std::vector{RankLook{.rank = Rank{0}, .seen = true, .state = 'S'}}).front();
  GatheredLooks one{1};
  REQUIRE(one.add({NodeId{"a"}, "a", Rank{0}, 1}, part).has_value());
  const bool fits = GENERATE(true, false);
  INFO("it fits: " << fits);

  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running(), lasting_now, one.bytes() + part.size() - (fits ? 0 : 1)};
  Stranger waiting{coordinator, "waiting"}, judged{coordinator, "judged"}, mute{coordinator, "waiting"};
  const auto ask = [&](Stranger& stranger, Stranger* other) {
    Join join = join_of("h", {.min_nodes = other ? 2 : 1, .max_nodes = other ? 2 : 1});
    join.node = NodeId{"h_1_0"};
    stranger.attendance->said(join);
    join.host = "i";
    join.node = NodeId{"i_1_0"};
    if (other) other->attendance->said(join);
    stranger.attendance->said(StoreReady{Round{0}, Port{4000}});
    stranger.attendance->said(AskLook{});
    REQUIRE(std::holds_alternative<Examine>(stranger.heard.back()));
    stranger.attendance->said(Examined{0, part, true});
  };
  ask(waiting, &mute);  // what it has answered is kept until its neighbour has, or two seconds are over
  ask(judged, nullptr);
  REQUIRE(std::holds_alternative<HangTold>(judged.heard.back()) == fits);
}

TEST_CASE("a host list counts for the hosts that it stands for before its agent is let in",
          "[net][coordinator][many]") {
  boost::asio::io_context loop;
  Coordinator coordinator{loop, {}, test::long_running()};
  std::vector<std::unique_ptr<Stranger>> crowd;
  const auto come = [&](const std::string& hosts) {
    const std::string name = std::to_string(crowd.size());
    crowd.push_back(std::make_unique<Stranger>(coordinator, "job" + name));
    Join join = join_of("h" + name, {.min_nodes = 2, .max_nodes = 16'000, .hostlist = hosts});
    join.node = NodeId{"h" + name + "_1_0"};
    crowd.back()->attendance->said(join);
    return crowd.back()->refusal;
  };
  while (come("h[0-16383]").empty()) REQUIRE(crowd.size() < 1000);
  REQUIRE(crowd.size() > 100);
  REQUIRE(crowd.back()->refusal.starts_with("told_bytes_max: "));
  REQUIRE(come("").empty());
}

TEST_CASE("what an agent of a mixed job will take up is known before it is let in", "[net][coordinator]") {
  boost::asio::io_context loop;
  CoordinatorJob job{loop, RunId{"job"}, Rendezvous{test::long_running()}, {}};
  test::OwnedKeys keys;
  TimePoint now = lasting_now();
  const auto come = [&](Peer peer, const Join& join, const auto& step) {
    step(Connected{peer, "10.0.0.1", "10.0.0.5"});
    step(Said{peer, join});
  };
  Join first = join_of("a", {.min_nodes = 3, .max_nodes = 3});
  first.node = NodeId{"a_1_0"};
  come(Peer{0}, first, [&](const RendezvousEvent& event) { (void)job.rendezvous.step(event, now); });
  keys.put(TorchrunState{});
  (void)job.mixed.begin(job.rendezvous, now);
  Join second = first;
  second.host = "b";
  second.node = NodeId{"b_1_0"};
  for (int i = 0; i < 40; ++i) second.facts.push_back({"name " + std::to_string(i), std::string(200, 'v')});
  second.terms.hostlist = std::string(60'000, 'h');  // where it waits for the next job, that is kept with it
  const std::size_t growth = job.growth_by(second), before = job.held_bytes();
  REQUIRE(growth > 60'000 + 2 * 40 * 200);
  come(Peer{1}, second, [&](const RendezvousEvent& event) { (void)job.mixed.step(event, keys, now, {}); });
  REQUIRE(job.mixed.member_count() == 2);
  REQUIRE(job.held_bytes() > before + 2 * 40 * 200);
  REQUIRE(job.held_bytes() <= before + growth);
  REQUIRE(job.growth_by(second) == 0);
  second.facts.push_back({"another", std::string(200, 'v')});
  REQUIRE(job.growth_by(second) > 2 * 200);
}
