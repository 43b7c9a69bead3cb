// Random histories of mixed jobs: torchrun's agents look and write in any order between ours.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <random>
#include <set>

#include "tests/support/mixed_world.hpp"

namespace torchup {

using namespace test;

namespace {

/// A job of up to three of torchrun's agents and three of ours.
struct History : MixedWorld {
  explicit History(unsigned seed) : MixedWorld{mixed_terms(2, 6, 100)}, chance{seed} {
    keys.put_as(ClientId{99}, {});
    const int of_theirs = between(1, 3), of_ours = between(1, 3);
    for (int i = 0; i < of_theirs; ++i) {
      agents.push_back(
          std::make_unique<TheirAgent>("10.0.0." + std::to_string(20 + i), 10 + static_cast<unsigned>(i), terms));
    }
    for (int i = 0; i < of_ours; ++i) ours.insert(enter("10.0.0." + std::to_string(between(1, 99))));
  }
  int between(int low, int high) { return std::uniform_int_distribution{low, high}(chance); }

  /// 100 ms, in which each of torchrun's agents looks or writes a few times or not at all.
  void live() {
    elapsed += 100ms;
    for (int i = between(0, 6); i > 0; --i) {
      agents[static_cast<std::size_t>(between(0, static_cast<int>(agents.size()) - 1))]->act(keys, utc());
      if (between(0, 3) == 0) turn();
      check();
    }
    keys.turn(now(), utc());
    turn();
    check();
    for (const auto id : ours) {
      if (last<StopWorkers>(id) && !answered.contains({id, heard[id].size()}) && between(0, 3) == 0) {
        answered.insert({id, heard[id].size()});
        say(id, join());
      }
    }
  }
  /// What every history promises.
  void check() {
    for (const auto id : ours) {
      std::set<std::int64_t> rounds;
      for (const CoordinatorMessage& message : heard[id]) {
        const auto* placed = std::get_if<Placed>(&message);
        if (!placed) continue;
        const auto number = placed->placement.round.value();
        REQUIRE(rounds.insert(number).second);  // nobody is placed twice
        const auto [seat, is_new] = seats.try_emplace({number, placed->placement.group_rank.value()}, id);
        REQUIRE(seat->second == id);  // and each place is one node's
      }
    }
  }
  [[nodiscard]] bool all_run() {
    return std::ranges::all_of(ours, [&](auto id) { return last<Placed>(id) != nullptr; }) &&
           std::ranges::all_of(agents, [](const auto& one) { return one->phase == TheirAgent::Phase::running; }) &&
           keys.state().wait_list.empty();
  }
  void until_all_run() {
    for (int i = 0; i < 1200 && !all_run(); ++i) live();
    REQUIRE(all_run());
    const TorchrunState state = keys.state();
    std::set<std::int64_t> ranks;
    for (const auto& one : agents) {
      REQUIRE(one->round == state.round);
      REQUIRE(one->places.back().second == state.participants.at(one->node));
      ranks.insert(one->places.back().second);
    }
    for (const auto id : ours) {
      REQUIRE(last<Placed>(id)->placement.round.value() == state.round);
      ranks.insert(last<Placed>(id)->placement.group_rank.value());
    }
    REQUIRE(ranks.size() == state.participants.size());
    REQUIRE(*ranks.rbegin() == static_cast<std::int64_t>(ranks.size()) - 1);
  }
  [[nodiscard]] int restarts() {
    int sum = 0;
    for (const auto id : ours) sum += last<Placed>(id)->placement.restart_count;
    return sum;
  }

  std::mt19937 chance;
  std::vector<std::unique_ptr<TheirAgent>> agents;
  std::set<MixedParts::Id> ours;
  std::set<std::pair<MixedParts::Id, std::size_t>> answered;
  std::map<std::pair<std::int64_t, int>, MixedParts::Id> seats;
};

}  // namespace

TEST_CASE("mixed jobs keep their promises in whatever order their agents write", "[unit][mixed]") {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    History job{seed};
    job.until_all_run();
    int failures = 0;
    for (int event = job.between(0, 4); event > 0; --event) {
      const auto round = Round{job.keys.state().round};
      const int kind = job.between(0, 2);
      if (kind == 0) {  // workers of all of ours fail, as one's failure makes the others'
        for (const auto id : job.ours) job.say(id, WorkersFailed{round, {WorkerFailure{.exit_code = 1}}});
        ++failures;
      } else if (kind == 1 && job.agents.size() + job.ours.size() < 6) {
        job.ours.insert(job.enter("10.0.0." + std::to_string(job.between(1, 99))));
      } else if (job.ours.size() > 1 && job.agents.size() + job.ours.size() > 2) {
        const auto leaver = *job.ours.begin();
        if (job.last<Placed>(leaver)->placement.restart_count > 0) continue;  // its count would go with it
        job.ours.erase(leaver);
        job.say(leaver, Leave{.ends_job = false, .exit_code = 143});
      } else {
        continue;
      }
      for (int i = 0; i < 5; ++i) job.live();
      job.until_all_run();
      REQUIRE(job.restarts() == failures);
    }
    const auto round = Round{job.keys.state().round};
    for (const auto id : job.ours) job.say(id, WorkersSucceeded{round});
    for (const auto& one : job.agents) one->succeed();
    for (int i = 0; i < 100; ++i) job.live();
    for (const auto id : job.ours) REQUIRE(job.last<End>(id)->verdict.exit_code == 0);
    for (const auto& one : job.agents) REQUIRE(one->phase == TheirAgent::Phase::over);
  }
}

}  // namespace torchup
