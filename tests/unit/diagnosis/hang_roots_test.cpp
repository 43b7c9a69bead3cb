#include "rendezvous/core/diagnosis/hang_verdict.hpp"

#include <catch2/catch.hpp>

#include "looks.hpp"

// Who is the root of a hang, where that is not plain.

using namespace torchup;
using namespace torchup::looks;

namespace {

HangVerdict judge(int world_size, std::vector<RankLook> looks) { return judge_hang(world_size, looks); }

/// Whom an action ends.
std::vector<Rank> ended_for(int world_size, const std::vector<RankLook>& looks) {
  HangJudge judge{world_size};
  for (const RankLook& look : looks) judge.add(look);
  return judge.ended_by(judge.verdict());
}

/// Rank 3 of four is as given; the others wait for it in #1234.
std::vector<RankLook> awaited(RankLook rank_3) {
  std::vector<RankLook> looks;
  for (int rank = 0; rank < 3; ++rank) looks.push_back(in(still(rank), "0", "0-3", 1234));
  looks.push_back(std::move(rank_3));
  return looks;
}
RankLook behind(RankLook look) { return at(std::move(look), "0", "0-3", 1233); }
/// As its agent tells of a worker that is gone with 0.
RankLook gone(int rank) {
  RankLook look = silent(rank);
  look.state = state_dead;
  return look;
}

void check(const HangVerdict& verdict, HangKind kind, std::initializer_list<int> culprits) {
  INFO(to_text(verdict.kind));
  REQUIRE(verdict.kind == kind);
  REQUIRE(verdict.culprits == list(culprits));
}

}  // namespace

TEST_CASE("who was not seen, or has ended, is not ended by an action", "[unit][diagnosis]") {
  check(judge(4, awaited(behind(still(3)))), HangKind::stuck, {3});
  REQUIRE(ended_for(4, awaited(behind(still(3)))) == list({3}));
  REQUIRE(ended_for(4, awaited(RankLook{.rank = Rank{3}})).empty());
  // For a rank that has ended the others wait for ever.
  check(judge(4, awaited(gone(3))), HangKind::stuck, {3});
  REQUIRE(ended_for(4, awaited(gone(3))) == list({0, 1, 2}));
  auto looks = awaited(gone(3));
  looks[1] = RankLook{.rank = Rank{1}};
  REQUIRE(ended_for(4, looks) == list({0, 2}));
  // Where the network is, of those that all have begun.
  std::vector<RankLook> all{in(still(0), "0", "0-1", 12), in(still(1), "0", "0-1", 12), RankLook{.rank = Rank{2}},
                            gone(3)};
  check(judge(4, all), HangKind::network, {});
  REQUIRE(ended_for(4, all) == list({0, 1}));
  for (RankLook& look : all) look.moving = true;
  check(judge(4, all), HangKind::network, {});  // some spin while they wait
}

TEST_CASE("who has ended is blamed where nobody else can be", "[unit][diagnosis]") {
  const auto waits = [](int rank) { return in(still(rank), "0", "0-3", 1234); };
  // It may have begun what the others wait in, before it ended.
  check(judge(4, {waits(0), waits(1), behind(moving(2)), gone(3)}), HangKind::busy, {2});
  check(judge(4, {waits(0), waits(1), waits(2), gone(3)}), HangKind::stuck, {3});
  // Where nobody waits, others go on by themselves.
  check(judge(3, {gone(0), moving(1), moving(2)}), HangKind::busy, {1, 2});
  check(judge(3, {gone(0), moving(1), still(2)}), HangKind::stuck, {2});
  check(judge(2, {in_recv(still(0)), gone(1)}), HangKind::stuck, {0});
  REQUIRE(judge(2, {gone(0), gone(1)}).culprits.empty());
  // And of who was not seen nobody knows that it is busy.
  check(judge(3, {moving(0), RankLook{.rank = Rank{1}}, moving(2)}), HangKind::busy, {0, 2});
  check(judge(2, {gone(0)}), HangKind::busy, {1});
}

TEST_CASE("ranks that wait for each other are a circle", "[unit][diagnosis]") {
  // 0 is in p, 1 in q, and both belong to both. 2 waits for 0 in a third group.
  const auto member = [](RankLook look) { return at(at(std::move(look), "p", "0-1", 3), "q", "0-1", 3); };
  RankLook zero = member(still(0)), one = member(still(1)), two = in(still(2), "r", "0,2", 4);
  zero.groups[0].number = 4;
  zero.collectives.push_back(call("p", 4));
  one.groups[1].number = 4;
  one.collectives.push_back(call("q", 4));
  zero = at(zero, "r", "0,2", 3);
  const HangVerdict verdict = judge(4, {zero, one, two, moving(3)});
  check(verdict, HangKind::order, {0, 1});
  REQUIRE(verdict.collective->waiting.size() == 1);
}

TEST_CASE("a circle is surer than a root that may be none", "[unit][diagnosis]") {
  const auto member = [](RankLook look) { return at(at(std::move(look), "p", "0-1", 3), "q", "0-1", 3); };
  RankLook zero = member(still(0)), one = member(still(1));
  zero.groups[0].number = one.groups[1].number = 4;
  zero.collectives.push_back(call("p", 4));
  one.collectives.push_back(call("q", 4));
  const RankLook two = in(still(2), "r", "2-3", 9);
  SECTION("one that was not seen") { check(judge(4, {zero, one, two}), HangKind::order, {0, 1}); }
  SECTION("one that has ended") { check(judge(4, {zero, one, two, gone(3)}), HangKind::order, {0, 1}); }
  SECTION("one for which a rank in recv may wait") {
    check(judge(4, {zero, one, in_recv(still(2)), moving(3)}), HangKind::order, {0, 1});
  }
  SECTION("but not than one that is behind") {
    check(judge(4, {zero, one, two, at(still(3), "r", "2-3", 8)}), HangKind::stuck, {3});
  }
}

TEST_CASE("a rank in recv is a root only if there is no other", "[unit][diagnosis]") {
  const auto waits = [](int rank) { return in(still(rank), "0", "0-3", 1234); };
  const auto receiving = [](int rank) { return in_recv(behind(still(rank))); };
  check(judge(4, {waits(0), waits(1), receiving(2), behind(still(3))}), HangKind::stuck, {3});
  check(judge(4, {waits(0), waits(1), receiving(2), behind(moving(3))}), HangKind::busy, {3});
  check(judge(4, {waits(0), waits(1), receiving(2), receiving(3)}), HangKind::stuck, {2, 3});
  // Nobody knows for whom it waits: for one who does not.
  check(judge(4, {in(still(0), "p", "0-1", 3), in_recv(at(still(1), "p", "0-1", 2)), still(2), moving(3)}),
        HangKind::stuck, {2});
  // Without any group: a pipeline, the last of which computes.
  check(judge(3, {in_recv(still(0)), in_recv(still(1)), moving(2)}), HangKind::busy, {2});
  check(judge(2, {in_recv(still(0)), in_recv(still(1))}), HangKind::stuck, {0, 1});
}

TEST_CASE("a point-to-point call whose peer is known waits for that one", "[unit][diagnosis]") {
  const HangVerdict verdict = judge(3, {with_peer(still(0), "nccl:recv 0<-2", 2), moving(1), still(2)});
  check(verdict, HangKind::stuck, {2});
  REQUIRE(verdict.collective->point_to_point);
  REQUIRE(verdict.collective->operation == "recv");
  REQUIRE(verdict.collective->missing == ranks("2"));
  REQUIRE(verdict.collective->waiting == ranks("0"));
  // Both ends are there.
  check(judge(2, {with_peer(still(0), "nccl:recv", 1), with_peer(still(1), "nccl:send", 0)}), HangKind::network, {});
  // Both send first.
  check(judge(2, {with_peer(still(0), "nccl:send", 1), with_peer(still(1), "nccl:send", 0)}), HangKind::order, {0, 1});
  // Its stack says recv, and the recorder from whom.
  check(judge(3, {in_recv(with_peer(still(0), "recv", 1)), still(1), moving(2)}), HangKind::stuck, {1});
  // Nobody that there could be.
  check(judge(2, {with_peer(still(0), "recv", 9), with_peer(still(1), "recv", 1)}), HangKind::network, {});
}

TEST_CASE("a rank that was not seen is waited for, and named where nobody else is", "[unit][diagnosis]") {
  auto looks = awaited(RankLook{.rank = Rank{3}});
  REQUIRE(judge(4, looks).unseen == ranks("3"));
  check(judge(4, looks), HangKind::busy, {3});
  looks.pop_back();
  check(judge(4, looks), HangKind::busy, {3});
  looks[2] = behind(still(2));
  check(judge(4, looks), HangKind::stuck, {2});
}

TEST_CASE("a rank without an answer whose stack is in a collective is a root only if there is no other",
          "[unit][diagnosis]") {
  RankLook inside = silent(1);
  inside.frames = {{"wait", "/x/torch/distributed/distributed_c10d.py", 3000}};
  auto looks = awaited(behind(still(3)));
  looks[1] = inside;
  check(judge(4, looks), HangKind::stuck, {3});
  looks[3] = in(still(3), "0", "0-3", 1234);
  check(judge(4, looks), HangKind::stuck, {1});
}

TEST_CASE("what a rank's look has no room for is taken from others, or not held against it", "[unit][diagnosis]") {
  // Rank 3 tells no members of its group.
  RankLook brief = behind(still(3));
  brief.groups[0].ranks = {};
  check(judge(4, awaited(brief)), HangKind::stuck, {3});
  brief = in(still(3), "0", "0-3", 1234);
  brief.groups[0].ranks = {};
  check(judge(4, awaited(brief)), HangKind::network, {});
  brief.groups.clear();
  check(judge(4, awaited(brief)), HangKind::network, {});
  // Nobody tells the members: those who name the group are they.
  check(judge(3, {in(still(0), "x", "", 3), at(still(1), "x", "", 2), still(2)}), HangKind::stuck, {1});
}

TEST_CASE("who has more groups than it tells is a root only if there is no other", "[unit][diagnosis]") {
  RankLook cut = still(3);
  cut.groups_cut = true;
  // Calls that are not finished are told first, so it waits for nobody.
  check(judge(4, awaited(cut)), HangKind::stuck, {3});
  auto looks = awaited(cut);
  looks[2] = behind(still(2));
  check(judge(4, looks), HangKind::stuck, {2});
  looks[2] = in(still(2), "0", "0-3", 1234);
  looks[3] = in(cut, "own", "3", 7);  // it is in a call of its own
  check(judge(4, looks), HangKind::network, {});
}
