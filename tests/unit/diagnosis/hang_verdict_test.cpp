#include "rendezvous/core/diagnosis/hang_verdict.hpp"

#include <catch2/catch.hpp>
#include <limits>

#include "looks.hpp"
#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "rendezvous/core/diagnosis/operation_words.hpp"

using namespace torchup;
using namespace torchup::looks;

namespace {

HangVerdict judge(int world_size, std::vector<RankLook> looks) { return judge_hang(world_size, looks); }

/// Rank 3 of four is as given; the others wait for it in #1234.
std::vector<RankLook> awaited(RankLook rank_3) {
  std::vector<RankLook> looks;
  for (int rank = 0; rank < 3; ++rank) looks.push_back(in(still(rank), "0", "0-3", 1234));
  looks.push_back(std::move(rank_3));
  return looks;
}
RankLook behind(RankLook look) { return at(std::move(look), "0", "0-3", 1233); }

void check(const HangVerdict& verdict, HangKind kind, std::initializer_list<int> culprits) {
  INFO(to_text(verdict.kind));
  REQUIRE(verdict.kind == kind);
  REQUIRE(verdict.culprits == list(culprits));
}

}  // namespace

TEST_CASE("who is waited for and does not move is stuck", "[unit][diagnosis]") {
  auto looks = awaited(behind(still(3)));
  looks[0].step = 1232;
  looks[0].beats = 10;
  looks[2].step = 1233;
  looks[2].beats = 11;
  looks[1].step = 9999;  // it has ended none
  const HangVerdict verdict = judge(4, looks);
  check(verdict, HangKind::stuck, {3});
  REQUIRE(verdict.last_step == 1233);
  REQUIRE(verdict.unseen.empty());
  REQUIRE(verdict.collective == AwaitedCollective{.group = "0",
                                                  .description = "0_pg",
                                                  .number = 1234,
                                                  .operation = "all_reduce",
                                                  .sizes = "[1024]",
                                                  .elements = 1024,
                                                  .dtype = "float32",
                                                  .bytes = 4096,
                                                  .missing = ranks("3"),
                                                  .waiting = ranks("0-2")});
}

TEST_CASE("who is waited for is stopped, stuck or busy", "[unit][diagnosis]") {
  RankLook stopped = behind(still(3));
  stopped.state = 'T';
  check(judge(4, awaited(stopped)), HangKind::stopped, {3});
  check(judge(4, awaited(behind(moving(3)))), HangKind::busy, {3});
  // Somebody whose helper gives no answer has not begun it either, as far as anybody knows.
  check(judge(4, awaited(silent(3))), HangKind::stuck, {3});
  RankLook stopped_silent = silent(3);
  stopped_silent.state = 'T';
  check(judge(4, awaited(stopped_silent)), HangKind::stopped, {3});
  // A process that has ended moves no more, whatever its last look says.
  RankLook ended = behind(moving(3));
  ended.state = state_dead;
  check(judge(4, awaited(ended)), HangKind::stuck, {3});
  // Who has not made the group at all has begun nothing there.
  check(judge(4, awaited(still(3))), HangKind::stuck, {3});
}

TEST_CASE("of several roots count the stopped, else the still", "[unit][diagnosis]") {
  RankLook stopped = behind(silent(2));
  stopped.state = 'T';
  const RankLook waits = in(still(0), "0", "0-3", 1234);
  check(judge(4, {waits, behind(still(1)), stopped, behind(moving(3))}), HangKind::stopped, {2});
  check(judge(4, {waits, behind(still(1)), behind(still(2)), behind(moving(3))}), HangKind::stuck, {1, 2});
  check(judge(4, {waits, behind(moving(1)), behind(moving(2)), behind(moving(3))}), HangKind::busy, {1, 2, 3});
}

TEST_CASE("who waits for others is not the cause", "[unit][diagnosis]") {
  // Rank 1 has not come to the world's collective, for it waits for rank 2 in a group of their own.
  const HangVerdict verdict = judge(4, {in(still(0), "w", "0-3", 9), in(at(still(1), "w", "0-3", 8), "p", "1-2", 5),
                                        at(at(still(2), "w", "0-3", 8), "p", "1-2", 4), in(still(3), "w", "0-3", 9)});
  check(verdict, HangKind::stuck, {2});
  REQUIRE(verdict.collective->group == "w");
  REQUIRE(verdict.collective->waiting == ranks("0,3"));
  REQUIRE(verdict.collective->missing == ranks("1-2"));
}

TEST_CASE("of many collectives that are under way the first that is missing is told", "[unit][diagnosis]") {
  auto looks = awaited(behind(still(3)));
  for (int rank = 0; rank < 3; ++rank) {
    auto& look = looks[static_cast<std::size_t>(rank)];
    look.collectives.insert(look.collectives.begin(), call("0", 1236));
    look.collectives.push_back(call("0", 1230));  // rank 3 has begun that
    look.groups[0].number = 1236;
  }
  const HangVerdict verdict = judge(4, looks);
  check(verdict, HangKind::stuck, {3});
  REQUIRE(verdict.collective->number == 1234);
}

TEST_CASE("a debugged rank goes before everything", "[unit][diagnosis]") {
  auto looks = awaited(behind(still(3)));
  looks[1].collectives[0].operation = "gloo:broadcast";
  looks[2].raised_ns = 5;
  looks[0].traced = true;
  check(judge(4, looks), HangKind::debugged, {0});
  looks[0].traced = false;
  looks[3].debugged = true;
  check(judge(4, looks), HangKind::debugged, {3});
  REQUIRE(judge(4, looks).collective->missing == ranks("3"));
  looks[3].debugged = false;
  check(judge(4, looks), HangKind::mismatch, {1});
  looks[1].collectives[0].operation = "gloo:all_reduce";
  check(judge(4, looks), HangKind::raised, {2});
}

TEST_CASE("different operations at one number are a mismatch of the fewer", "[unit][diagnosis]") {
  std::vector<RankLook> looks;
  for (int rank = 0; rank < 5; ++rank) {
    looks.push_back(in(still(rank), "0", "0-4", call("0", 8, rank == 1 ? "gloo:broadcast" : "gloo:all_reduce")));
  }
  const HangVerdict verdict = judge(5, looks);
  check(verdict, HangKind::mismatch, {1});
  REQUIRE(verdict.collective->number == 8);
  REQUIRE(verdict.collective->waiting == ranks("0-4"));
  const OperationSide many{ranks("0,2-4"), "all_reduce", "[1024]", 1024, "float32", 4096};
  const OperationSide few{ranks("1"), "broadcast", "[1024]", 1024, "float32", 4096};
  REQUIRE(verdict.collective->operations == std::vector{many, few});
  // All, where they are equally many.
  looks.erase(looks.begin());
  looks[1].collectives[0].operation = "gloo:broadcast";
  for (RankLook& look : looks) look.groups[0].ranks = ranks("1-4");
  check(judge(5, looks), HangKind::mismatch, {1, 2, 3, 4});
}

TEST_CASE("different sizes or types are a mismatch where they must be equal", "[unit][diagnosis]") {
  const auto kind = [](const Collective& left, const Collective& right) {
    return judge(3, {in(still(0), "0", "0-2", left), in(still(1), "0", "0-2", right), in(still(2), "0", "0-2", left)});
  };
  for (const char* operation : {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter",
                                "nccl:_all_gather_base", "nccl:_reduce_scatter_base"}) {
    INFO(operation);
    check(kind(call("0", 3, operation), call("0", 3, operation, 1025)), HangKind::mismatch, {1});
    check(kind(call("0", 3, operation), call("0", 3, operation, 1024, "Half")), HangKind::mismatch, {1});
    check(kind(call("0", 3, operation), call("0", 3, operation, 1024, "float32")), HangKind::network, {});
    check(kind(call("0", 3, operation), call("0", 3, operation, -1)), HangKind::network, {});
    check(kind(call("0", 3, operation), call("0", 3, operation, 1025, "")), HangKind::network, {});
  }
  for (const char* operation : {"gather", "scatter", "all_to_all", "barrier"}) {
    INFO(operation);
    check(kind(call("0", 3, operation), call("0", 3, operation, 1025, "Half")), HangKind::network, {});
  }
}

TEST_CASE("who has left a collective that others are in is compared with them", "[unit][diagnosis]") {
  // The broadcast's root was done without the others, which are in an all_reduce of that number.
  Collective done = call("0", 5, "gloo:broadcast");
  done.finished = true;
  RankLook root = in(still(0), "0", "0-2", call("0", 6));
  root.collectives.push_back(done);
  const RankLook one = in(still(1), "0", "0-2", 5), two = in(still(2), "0", "0-2", 5);
  check(judge(3, {root, one, two}), HangKind::mismatch, {0});
  // What all have finished is no mismatch, whatever it was.
  Collective other_done = call("0", 4, "gloo:all_reduce");
  other_done.finished = true;
  done.number = 4;
  RankLook with_past = in(still(0), "0", "0-1", 5), with_other_past = in(still(1), "0", "0-1", 5);
  with_past.collectives.push_back(done);
  with_other_past.collectives.push_back(other_done);
  check(judge(2, {with_past, with_other_past}), HangKind::network, {});
}

TEST_CASE("calls of two backends of one group are not compared", "[unit][diagnosis]") {
  // Each counts its own: #3 of one is not #3 of the other.
  std::vector<RankLook> looks;
  for (int rank = 0; rank < 3; ++rank) {
    looks.push_back(in(still(rank), "0", "0-2", call("0", 3, "nccl:all_reduce")));
    Collective done = call("0", 3, "gloo:barrier", 0);
    done.finished = true;
    if (rank != 1) looks.back().collectives.push_back(done);
  }
  check(judge(3, looks), HangKind::network, {});
  looks[2].collectives[0].operation = "nccl:broadcast";
  check(judge(3, looks), HangKind::mismatch, {2});
}

TEST_CASE("of two numbers with a mismatch the lower is told, of two groups the larger", "[unit][diagnosis]") {
  std::vector<RankLook> looks;
  for (int rank = 0; rank < 4; ++rank) {
    looks.push_back(in(still(rank), "0", "0-3", call("0", 9, rank == 0 ? "a" : "b")));
    looks.back().collectives.push_back(call("0", 8, rank == 2 ? "a" : "b"));
  }
  looks[0] = in(looks[0], "1", "0-1", call("1", 2, "c"));
  looks[1] = in(looks[1], "1", "0-1", call("1", 2, "d"));
  check(judge(4, looks), HangKind::mismatch, {2});
  REQUIRE(judge(4, looks).collective->number == 8);
}

TEST_CASE("no more sides of a mismatch are told than have room", "[unit][diagnosis]") {
  for (const int sides : {static_cast<int>(sides_told_max), static_cast<int>(sides_told_max) + 1}) {
    std::vector<RankLook> looks;
    for (int rank = 0; rank < sides; ++rank)
      looks.push_back(in(still(rank), "0", "0-8", call("0", 1, "all_reduce", rank)));
    const HangVerdict verdict = judge(sides, looks);
    REQUIRE(verdict.culprits.size() == static_cast<std::size_t>(sides));
    REQUIRE(verdict.collective->operations.size() == sides_told_max);
  }
}

TEST_CASE("who has raised and lives is the cause, unless it was of another's end", "[unit][diagnosis]") {
  auto looks = awaited(behind(still(3)));
  looks[1].raised_ns = 77;
  looks[2].raised_ns = 70;
  looks[2].raised_consequence = true;
  check(judge(4, looks), HangKind::raised, {1});
  SECTION("where all are consequences the waiting decides") {
    looks[1].raised_consequence = true;
    check(judge(4, looks), HangKind::stuck, {3});
  }
  SECTION("who has ended is past that") {
    looks[1].state = state_zombie;
    check(judge(4, looks), HangKind::stuck, {3});
  }
}

TEST_CASE("where all have begun and nobody gets on it is the network", "[unit][diagnosis]") {
  std::vector<RankLook> looks;
  for (int rank = 0; rank < 4; ++rank) looks.push_back(in(still(rank), "0", "0-3", 12));
  const HangVerdict verdict = judge(4, looks);
  check(verdict, HangKind::network, {});
  REQUIRE(verdict.collective->waiting == ranks("0-3"));
  REQUIRE(verdict.collective->missing.empty());
  looks[2].moving = true;
  REQUIRE(judge(4, looks) == verdict);
}

TEST_CASE("where nobody waits, those that do not move are stuck", "[unit][diagnosis]") {
  check(judge(3, {moving(0), still(1), moving(2)}), HangKind::stuck, {1});
  check(judge(3, {moving(0), moving(1), moving(2)}), HangKind::busy, {0, 1, 2});
  check(judge(2, {silent(0), silent(1)}), HangKind::stuck, {0, 1});
  REQUIRE_FALSE(judge(2, {silent(0), silent(1)}).collective);
}

TEST_CASE("who makes a group waits for those who have not come to that", "[unit][diagnosis]") {
  const bool whole = GENERATE(true, false);
  const auto in_torch = [&](RankLook look) {
    look.frames = {{"_create_gloo_process_group", "/x/torch/distributed/distributed_c10d.py", 2000},
                   {"main", "/home/user/train.py", 12}};
    return whole ? look : without_stack(look);
  };
  const auto maker = [&](int rank) { return in_torch(at(still(rank), "0", "0-2", 7)); };
  check(judge(3, {moving(0), maker(1), maker(2)}), HangKind::busy, {0});
  check(judge(3, {still(0), maker(1), maker(2)}), HangKind::stuck, {0});
  SECTION("also before the first group") {
    check(judge(3, {moving(0), in_torch(still(1)), in_torch(silent(2))}), HangKind::busy, {0});
  }
  SECTION("where nobody else is seen and lives, it is one of them") {
    check(judge(3, {maker(0), maker(1), maker(2)}), HangKind::stuck, {0, 1, 2});
    RankLook ended = still(0);
    ended.state = state_dead;
    check(judge(3, {ended, maker(1), maker(2)}), HangKind::stuck, {1, 2});
    check(judge(3, {maker(1), maker(2)}), HangKind::stuck, {1, 2});
  }
  SECTION("and one that is stopped never gets on") {
    RankLook stopped = maker(2);
    stopped.state = state_stopped;
    check(judge(3, {moving(0), maker(1), stopped}), HangKind::stopped, {2});
  }
}

TEST_CASE("groups of one name with other members are others", "[unit][diagnosis]") {
  check(judge(4, {in(still(0), "dp", "0-1", 5), in(still(1), "dp", "0-1", 5), in(still(2), "dp", "2-3", 9),
                  at(still(3), "dp", "2-3", 8)}),
        HangKind::stuck, {3});
}

TEST_CASE("a look that contradicts itself, or comes twice, changes no other's", "[unit][diagnosis]") {
  auto looks = awaited(behind(still(3)));
  looks.push_back(in(still(3), "0", "0-3", 1234));  // a second word of rank 3
  looks.push_back(in(still(4), "0", "0-3", 99));    // none of the world
  looks.push_back(in(still(-1), "0", "0-3", 99));
  check(judge(4, looks), HangKind::stuck, {3});
  // Who is no member of the group it tells of.
  std::vector<RankLook> others{in(still(0), "0", "0-1", 5), in(still(1), "0", "0-1", 5), at(still(2), "0", "0-1", 1)};
  check(judge(3, others), HangKind::network, {});
  REQUIRE(judge(0, others).culprits.empty());
}

TEST_CASE("what is done about each kind", "[unit][diagnosis]") {
  using enum HangKind;
  for (const HangKind kind : {debugged, mismatch, raised, stopped, stuck, busy, order, network}) {
    INFO(to_text(kind));
    for (const bool given : {false, true}) {
      const HangSpared spared = kind == debugged         ? HangSpared::debugged
                                : kind == busy && !given ? HangSpared::busy
                                                         : HangSpared::nobody;
      const bool acts = spared == HangSpared::nobody;
      REQUIRE(decision_for(kind, OnHang::report, given) == HangDecision{});
      REQUIRE(decision_for(kind, OnHang::abort, given) ==
              HangDecision{acts ? HangAction::abort : HangAction::none, spared});
      REQUIRE(decision_for(kind, OnHang::restart, given) ==
              HangDecision{acts ? HangAction::restart : HangAction::none, spared});
    }
  }
  REQUIRE(to_text(mismatch) == "mismatch");
  REQUIRE(to_text(HangAction::restart) == "restart");
}

TEST_CASE("the recorder's words become people's", "[unit][diagnosis]") {
  REQUIRE(plain_operation("gloo:all_reduce") == "all_reduce");
  REQUIRE(plain_operation("nccl:_all_gather_base") == "all_gather");
  REQUIRE(plain_operation("nccl:send 0->1") == "send");
  REQUIRE(plain_operation("") == "");
  REQUIRE(backend_of("nccl:_all_gather_base") == "nccl");
  REQUIRE(backend_of("all_reduce").empty());
  REQUIRE(plain_dtype("BFloat16") == "bfloat16");
  REQUIRE(plain_dtype("Later") == "Later");
  REQUIRE(bytes_of(1 << 20, "Float") == 4 << 20);
  REQUIRE(bytes_of(3, "int64") == 24);
  REQUIRE(bytes_of(3, "Later") == -1);
  REQUIRE(bytes_of(-1, "Float") == -1);
  constexpr auto most = std::numeric_limits<std::int64_t>::max();
  REQUIRE(bytes_of(most / 8, "Double") == most / 8 * 8);
  REQUIRE(bytes_of(most / 8 + 1, "Double") == -1);
}
