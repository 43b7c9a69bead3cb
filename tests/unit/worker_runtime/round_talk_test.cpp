#include "worker_runtime/elastic/round_talk.hpp"

#include <catch2/catch.hpp>

using namespace torchup;

namespace {

using Blame = RoundTalk::Blame;

const RoundOver over{"rank 1 was ended by signal 9"};

}  // namespace

TEST_CASE("a round is over when the agent says so, until the next place", "[unit][round_talk]") {
  RoundTalk talk;
  REQUIRE(talk.stay() == WorkerWord{WorkerStays{}});
  REQUIRE_FALSE(talk.over());
  REQUIRE_FALSE(talk.hear(over));
  REQUIRE(talk.over() == over.reason);
  REQUIRE(talk.park(7) == WorkerWord{WorkerParked{7}});
  REQUIRE_FALSE(talk.take_place());
  REQUIRE_FALSE(talk.hear(NewPlace{{{"RANK", "1"}}}));
  REQUIRE_FALSE(talk.over());
  REQUIRE(talk.take_place() == RoundTalk::Variables{{"RANK", "1"}});
  REQUIRE_FALSE(talk.take_place());
}

TEST_CASE("a round that is over without a reason is over", "[unit][round_talk]") {
  RoundTalk talk;
  REQUIRE_FALSE(talk.hear(RoundOver{}));
  REQUIRE_FALSE(talk.over()->empty());
}

TEST_CASE("an exception is a consequence, or its own fault, and the agent says which", "[unit][round_talk]") {
  RoundTalk talk;
  SECTION("the round is over already: there is nothing to ask") {
    REQUIRE_FALSE(talk.hear(over));
    REQUIRE_FALSE(talk.raise("closed by peer"));
    REQUIRE(talk.blame() == Blame::consequence);
  }
  SECTION("it is over a moment later") {
    REQUIRE(talk.raise("closed by peer") == WorkerWord{WorkerRaised{"closed by peer"}});
    REQUIRE_FALSE(talk.blame());
    REQUIRE_FALSE(talk.hear(over));
    REQUIRE(talk.blame() == Blame::consequence);
  }
  SECTION("nobody else failed") {
    REQUIRE(talk.raise("bad batch"));
    REQUIRE_FALSE(talk.hear(OwnFault{}));
    REQUIRE(talk.blame() == Blame::own);
    SECTION("and the next one is asked about anew") {
      REQUIRE(talk.raise("again"));
      REQUIRE_FALSE(talk.blame());
    }
  }
  SECTION("what it is asked besides says nothing of that") {
    REQUIRE(talk.raise("bad batch"));
    REQUIRE_FALSE(talk.hear(LookWanted{1}));
    REQUIRE_FALSE(talk.blame());
  }
  SECTION("the agent has gone") {
    REQUIRE(talk.raise("closed by peer"));
    talk.end();
    REQUIRE(talk.blame() == Blame::own);
    REQUIRE_FALSE(talk.raise("again"));
    REQUIRE(talk.blame() == Blame::own);
  }
}

TEST_CASE("what nobody asked for is passed over", "[unit][round_talk]") {
  RoundTalk talk;
  REQUIRE_FALSE(talk.hear(OwnFault{}));
  REQUIRE_FALSE(talk.blame());
  REQUIRE_FALSE(talk.hear(NewPlace{{{"RANK", "1"}}}));
  REQUIRE_FALSE(talk.take_place());
  REQUIRE(talk.park(1) == WorkerWord{WorkerParked{1}});
  REQUIRE_FALSE(talk.take_place());
}

TEST_CASE("who is asked again while it waits for a place says again where it is", "[unit][round_talk]") {
  RoundTalk talk;
  REQUIRE_FALSE(talk.hear(over));
  REQUIRE(talk.park(7) == WorkerWord{WorkerParked{7}});
  REQUIRE(talk.hear(over) == WorkerWord{WorkerParked{7}});
  SECTION("and not once its place is there: that round is over before it has begun") {
    REQUIRE_FALSE(talk.hear(NewPlace{{{"RANK", "1"}}}));
    REQUIRE_FALSE(talk.hear(over));
    REQUIRE(talk.take_place());
    REQUIRE(talk.over());
  }
}

TEST_CASE("who leaves forgets what was said of the round", "[unit][round_talk]") {
  RoundTalk talk;
  REQUIRE_FALSE(talk.hear(over));
  REQUIRE(talk.leave() == WorkerWord{WorkerLeaves{}});
  REQUIRE_FALSE(talk.over());
}
