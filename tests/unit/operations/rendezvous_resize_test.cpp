// How many nodes people want a job to have.
#include "tests/unit/operations/ordering.hpp"

using namespace torchup;
using namespace torchup::rendezvous_job;

TEST_CASE("the range of a job moves", "[unit][orders]") {
  SECTION("down: the nodes with the highest group ranks stand by") {
    Ordering it = ordering(4, 2, 4);
    REQUIRE(it.order(order::Resize{1, 2}));
    REQUIRE(it.stops().size() == 4);
    REQUIRE(it.stops().at("a").reason == "resized to 1:2 nodes by user ada (uid 1000)");
    REQUIRE(it.stops().at("a").save);
    for (const char* name : {"a", "b"}) REQUIRE_FALSE(it.stops().at(name).stands_by);
    for (const char* name : {"c", "d"}) REQUIRE(it.stops().at(name).stands_by);  // they keep no workers for a place
    it.settle();
    REQUIRE(it.states() == "a seated, b seated, c standby, d standby");
    REQUIRE((it.view().min_nodes == 1 && it.view().max_nodes == 2));
    SECTION("and take the places of those that are lost, the lowest first") {
      it.job.gone("a");
      it.job.join("b");
      it.begin();
      REQUIRE(it.states() == "b seated, c seated, d standby");
    }
    SECTION("and up again") {
      REQUIRE(it.order(order::Resize{1, 4}));
      it.settle();
      REQUIRE(it.states() == "a seated, b seated, c seated, d seated");
      REQUIRE(it.view().restart_count == 0);
      REQUIRE(it.view().membership_changes == 2);
    }
    SECTION("and stays so for a coordinator that starts again") {
      it.job.restart();
      const Placement place{.round = Round{1}, .group_world_size = 2, .world_size = 4};
      for (const char* name : {"a", "b"}) it.job.resume(name, Resume::Stage::running, place);
      for (const char* name : {"c", "d"}) it.job.resume(name, Resume::Stage::ready);
      it.job.pass(it.job.now + 15s);
      REQUIRE(it.states() == "a seated, b seated, c standby, d standby");
      REQUIRE(it.view().max_nodes == 2);
    }
    SECTION("agents still come with the terms that the job began with") {
      REQUIRE(it.job.join("e").find("refused") == std::string::npos);
      REQUIRE(it.job.rendezvous.member_count() == 5);
    }
    SECTION("a further job of the run id has its own range") {
      it.order(order::Stop{});
      it.job.all_gone();
      it.job.join_anew("a");
      REQUIRE((it.view().min_nodes == 2 && it.view().max_nodes == 4));
    }
  }
  SECTION("beyond the terms") {
    Ordering it = ordering(2, 2, 2);
    it.job.join("c");
    REQUIRE(it.order(order::Resize{2, 3}));
    it.settle();
    REQUIRE(it.states() == "a seated, b seated, c seated");
  }
  SECTION("around the round that runs: nothing stops") {
    Ordering it = ordering(2, 2, 2);
    REQUIRE(it.order(order::Resize{1, 4}));
    REQUIRE(it.stops().empty());
    REQUIRE(it.view().membership_changes == 0);
    SECTION("said twice it is the same") {
      REQUIRE(it.order(order::Resize{1, 4}));
      REQUIRE(it.stops().empty());
    }
    SECTION("a newcomer has a place") {
      it.job.join("c");
      REQUIRE(it.job.pass(it.job.now + 1s).find("a stop round 0 (membership): joining: c") != std::string::npos);
    }
    SECTION("a node may leave") {
      it.job.gone("b");
      it.job.join("a");
      it.begin();
      REQUIRE(it.states() == "a seated");
    }
  }
  SECTION("before the first round") {
    Ordering it{Job{elastic(3, 3)}};
    it.job.join("a");
    it.job.join("b");
    REQUIRE(it.order(order::Resize{2, 2}));
    it.begin();
    REQUIRE(it.states() == "a seated, b seated");
  }
}

TEST_CASE("who has no place after a resize hears so from a coordinator that starts again, too", "[unit][orders]") {
  Ordering it = ordering(4, 2, 4);
  REQUIRE(it.order(order::Resize{1, 2}));
  it.job.restart();
  const Placement place{.round = Round{0}, .group_world_size = 4, .world_size = 8};
  const auto stands_by = [&](const std::string& name) {
    const Peer peer = it.job.connect(name);
    const Resume resume{.join = it.job.join_of(name), .stage = Resume::Stage::running, .placement = place};
    it.actions = it.job.rendezvous.step(Resumed{peer, resume}, it.job.now);
    return it.stops().at(name).stands_by;
  };
  for (const char* name : {"a", "b"}) REQUIRE_FALSE(stands_by(name));
  for (const char* name : {"c", "d"}) REQUIRE(stands_by(name));
}

TEST_CASE("who has a place when another is lost keeps its workers for it", "[unit][orders]") {
  Ordering it = ordering(3, 2, 3);
  it.job.join("spare");
  it.actions = it.job.rendezvous.step(Gone{it.job.peer_of.at("b"), true}, it.job.now);
  REQUIRE(it.stops().size() == 2);
  for (const char* name : {"a", "c"}) REQUIRE_FALSE(it.stops().at(name).stands_by);
}

TEST_CASE("a round above the first terms goes on at a coordinator without memory", "[unit][orders]") {
  Job job{elastic(2, 2), {.agents_max = 3}};
  const auto resume = [&](const std::string& name, int group_rank, int nodes) {
    const Placement place{.round = Round{4},
                          .group_rank = GroupRank{group_rank},
                          .group_world_size = nodes,
                          .first_rank = Rank{2 * group_rank},
                          .world_size = 2 * nodes};
    return job.resume(name, Resume::Stage::running, place);
  };
  SECTION("of as many nodes as may come") {
    for (int rank = 0; rank < 3; ++rank)
      REQUIRE(resume(std::string(1, static_cast<char>('a' + rank)), rank, 3).empty());
    REQUIRE(job.rendezvous.phase() == Rendezvous::Phase::running);
    REQUIRE(job.rendezvous.round() == Round{4});
    REQUIRE(job.pass(job.now + 60s).find("stop round") == std::string::npos);
  }
  SECTION("of more: such a round cannot be") {
    REQUIRE(resume("a", 0, 4).find("a stop round 4 (fenced)") != std::string::npos);
  }
}

TEST_CASE("a resize that came before the running round was heard of is done when it is", "[unit][orders]") {
  Ordering it{Job{elastic(2, 4)}};
  it.job.join("spare");
  const JobRange range = GENERATE(JobRange{1, 2}, JobRange{1, 3});
  REQUIRE(it.order(order::Resize{range.min_nodes, range.max_nodes}));
  std::string last;
  for (int rank = 0; rank < 3; ++rank) {
    const Placement place{.round = Round{4},
                          .group_rank = GroupRank{rank},
                          .group_world_size = 3,
                          .first_rank = Rank{2 * rank},
                          .world_size = 6};
    last = it.job.resume(std::string(1, static_cast<char>('a' + rank)), Resume::Stage::running, place);
  }
  if (range.max_nodes == 3) {
    REQUIRE(last.find("stop round") == std::string::npos);
    REQUIRE(it.job.rendezvous.phase() == Rendezvous::Phase::running);
    return;
  }
  for (const char* name : {"a", "b", "c"}) {
    REQUIRE(last.find(std::string{name} + " stop round 4 (membership): the range was ordered") != std::string::npos);
  }
  for (const char* name : {"a", "b", "c"}) it.job.join(name);
  it.begin();
  REQUIRE(it.view().world_size == 4);
  REQUIRE(it.view().restart_count == 0);
}

TEST_CASE("orders end with those who were there before the first round", "[unit][orders]") {
  Ordering it{Job{elastic(3, 3)}};
  it.job.join_anew("a");
  it.job.join_anew("b");
  REQUIRE(it.order(order::Resize{1, 8}));
  it.job.all_gone();
  it.job.join_anew("c");
  REQUIRE((it.view().min_nodes == 3 && it.view().max_nodes == 3));
}

TEST_CASE("a range that cannot be is refused", "[unit][orders]") {
  Ordering it = ordering(2, 2, 4);
  REQUIRE_FALSE(it.order(order::Resize{0, 2}));
  REQUIRE_FALSE(it.order(order::Resize{3, 2}));
  REQUIRE_FALSE(it.order(order::Resize{1, RendezvousSettings{}.agents_max + 1}));
  REQUIRE_FALSE(it.order(order::Resize{3, 4}));  // a round runs, and too few are there
  REQUIRE(it.answer.text == "2 nodes are there, too few for 3:4 (phase: running)");
  REQUIRE(it.order(order::Resize{1, RendezvousSettings{}.agents_max}));
  SECTION("of no multiple that a round may have") {
    JobTerms terms = elastic(2, 4);
    terms.nodes_multiple_of = 2;
    Ordering pairs{running_job(2, terms)};
    REQUIRE_FALSE(pairs.order(order::Resize{1, 1}));
    REQUIRE_FALSE(pairs.order(order::Resize{3, 3}));
    REQUIRE(pairs.order(order::Resize{1, 3}));
  }
  SECTION("of a static rendezvous") {
    Job job{elastic(2, 2)};
    for (const int rank : {0, 1}) {
      const std::string name(1, static_cast<char>('a' + rank));
      job.connect(name);
      Join join = job.join_of(name);
      join.group_rank = GroupRank{rank};
      job.say(name, join);
    }
    job.say("a", StoreReady{Round{0}, Port{4000}});
    Ordering given{std::move(job)};
    REQUIRE_FALSE(given.order(order::Resize{1, 2}));
    REQUIRE(given.order(order::Restart{}));
  }
}
