#include "rendezvous/core/torchrun/torchrun_place.hpp"

#include <catch2/catch.hpp>

#include "tests/support/torchrun_keys.hpp"

namespace torchup {
namespace {

const TorchrunNode a{"a", 1, 0}, b{"b", 2, 0}, c{"c", 3, 0};

struct Job {
  explicit Job(bool common) : place{RunId{"job"}, common} {
    if (common) keys.common = MeetingPlace{"10.0.0.200", Port{1000}};
  }

  /// Group rank 0, an agent of torchrun's, publishes.
  void offer(std::int64_t round, const std::string& address, const std::string& port) {
    const auto set = [&](const char* name, const std::string& value) {
      if (!place.withholds(round, name, value)) keys.map[torchrun_round_key(RunId{"job"}, round, name)] = value;
    };
    set("MASTER_ADDR", address);
    set("MASTER_PORT", port);
  }
  [[nodiscard]] std::string published(std::int64_t round) {
    const std::string prefix = "torch.rendezvous.job." + std::to_string(round) + "/MASTER_";
    if (!keys.map.contains(prefix + "ADDR")) return "";
    return keys.map[prefix + "ADDR"] + ":" + keys.map[prefix + "PORT"];
  }

  Keys keys;
  TorchrunPlace place;
};

}  // namespace

TEST_CASE("workers meet on group rank 0's node, in every round", "[unit][torchrun]") {
  Job job{false};
  job.place.begin(0, {a, b}, job.keys);
  REQUIRE_FALSE(job.place.question());
  job.offer(0, "a", "4711");
  REQUIRE(job.published(0) == "a:4711");
  REQUIRE(job.place.question() == MeetingPlace{"a", Port{4711}});
  REQUIRE_FALSE(job.place.withholds(0, "other", "x"));

  SECTION("an agent's store is published again, and emptied before roles are passed on") {
    job.place.answered({"a", Port{4711}}, true, job.keys);
    REQUIRE_FALSE(job.place.question());
    REQUIRE_FALSE(job.place.holds_roles());
    job.keys.empties = false;
    job.place.begin(1, {a, b, c}, job.keys);
    REQUIRE(job.published(1) == "a:4711");  // which a newcomer waits for, and nobody else publishes
    REQUIRE(job.place.holds_roles());
    job.place.turn(job.keys);
    REQUIRE(job.place.holds_roles());
    job.keys.empties = true;
    job.place.turn(job.keys);
    REQUIRE_FALSE(job.place.holds_roles());
    REQUIRE(job.keys.emptied == std::vector<std::string>{"a:4711"});

    SECTION("even where another has become group rank 0: old members remember the first") {
      job.place.begin(2, {c, a}, job.keys);
      job.offer(2, "c", "9");
      REQUIRE(job.published(2) == "a:4711");
    }
    SECTION("until its agent has no part in the job any more") {
      job.place.begin(2, {b, c}, job.keys);
      REQUIRE(job.published(2).empty());
      REQUIRE(job.place.notes().size() == 1);
      job.offer(2, "b", "9");
      REQUIRE(job.published(2) == "b:9");
    }
  }
  SECTION("one that a worker opens is new in every round") {
    job.place.answered({"a", Port{4711}}, false, job.keys);
    job.place.begin(1, {a, b}, job.keys);
    REQUIRE(job.published(1).empty());
    REQUIRE_FALSE(job.place.holds_roles());
    job.offer(1, "a", "4712");
    REQUIRE(job.published(1) == "a:4712");
  }
  SECTION("an answer that comes a round too late still helps newcomers") {
    job.place.begin(1, {a, b, c}, job.keys);
    REQUIRE(job.published(1).empty());
    job.place.answered({"a", Port{4711}}, true, job.keys);
    REQUIRE(job.published(1) == "a:4711");
  }
  SECTION("an answer about another place says nothing about this one") {
    job.place.begin(1, {a, b}, job.keys);
    job.offer(1, "a", "4712");
    job.place.answered({"a", Port{4711}}, true, job.keys);
    REQUIRE(job.place.question() == MeetingPlace{"a", Port{4712}});
    job.place.answered({"a", Port{4712}}, false, job.keys);
    job.place.begin(2, {a, b}, job.keys);
    REQUIRE(job.published(2).empty());
  }
}

TEST_CASE("the place that an agent of ours has opened stays", "[unit][torchrun]") {
  Job job{false};
  job.place.begin(0, {a, b}, job.keys);
  job.place.published_by_ours(0, "MASTER_ADDR", "10.0.0.1");
  job.place.published_by_ours(0, "MASTER_PORT", "77");
  job.place.begin(1, {c, a}, job.keys);
  REQUIRE(job.published(1) == "10.0.0.1:77");
  REQUIRE(job.keys.emptied == std::vector<std::string>{"10.0.0.1:77"});
}

TEST_CASE("workers meet at our common place where that is wished", "[unit][torchrun]") {
  Job job{true};
  job.place.begin(0, {a, b}, job.keys);
  job.offer(0, "a", "4711");
  REQUIRE(job.published(0).empty());  // group rank 0 may know better
  REQUIRE(job.place.question() == MeetingPlace{"a", Port{4711}});

  SECTION("where group rank 0's own store answers") {
    job.place.answered({"a", Port{4711}}, true, job.keys);
    REQUIRE(job.published(0) == "10.0.0.200:1000");
    REQUIRE(job.keys.emptied.empty());
    job.place.begin(1, {b, c}, job.keys);  // without the first one
    REQUIRE(job.published(1) == "10.0.0.200:1000");
    REQUIRE(job.keys.emptied == std::vector<std::string>{"10.0.0.200:1000"});
    job.offer(1, "b", "4712");
    REQUIRE(job.published(1) == "10.0.0.200:1000");

    job.keys.empties = false;  // it holds more than is erased at once
    job.place.begin(2, {b, c}, job.keys);
    REQUIRE(job.published(2) == "10.0.0.200:1000");
    REQUIRE(job.place.holds_roles());
    job.keys.empties = true;
    job.place.turn(job.keys);
    REQUIRE_FALSE(job.place.holds_roles());
  }
  SECTION("but not where a worker is to open it") {
    job.place.answered({"a", Port{4711}}, false, job.keys);
    REQUIRE(job.published(0) == "a:4711");
    job.place.begin(1, {a, b}, job.keys);
    REQUIRE(job.published(1).empty());
    job.offer(1, "a", "4713");
    job.place.answered({"a", Port{4713}}, false, job.keys);
    REQUIRE(job.published(1) == "a:4713");
    REQUIRE(job.keys.emptied.empty());
  }
  SECTION("an answer that comes when the round is over does nothing") {
    job.place.begin(1, {a, b}, job.keys);
    job.place.answered({"a", Port{4711}}, true, job.keys);
    REQUIRE(job.published(0).empty());
    REQUIRE(job.published(1).empty());
  }
}

}  // namespace torchup
