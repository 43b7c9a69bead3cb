#include "rendezvous/core/diagnosis/gathered_looks.hpp"

#include <catch2/catch.hpp>

#include "looks.hpp"
#include "rendezvous/core/diagnosis/look_parts.hpp"

using namespace torchup;
using namespace torchup::looks;

namespace {

NodeRanks node(int first, int workers) { return {NodeId{"a"}, "nodea", Rank{first}, workers}; }

RankLook with_stack(RankLook look) {
  for (int i = 0; i < 6; ++i) look.frames.push_back({"function", "some/where/file.py", i});
  return look;
}

}  // namespace

TEST_CASE("a node tells of its own ranks, and of each once", "[unit][diagnosis]") {
  GatheredLooks looks{4};
  RankLook again = still(2);
  again.kernel = "again";
  REQUIRE(looks.add(node(2, 2), pack_looks(std::vector{still(1), still(2), again, still(4)}).front()).has_value());
  REQUIRE_FALSE(looks.look(Rank{1}));
  REQUIRE(looks.look(Rank{2})->kernel.empty());
  REQUIRE_FALSE(looks.look(Rank{3}));
  REQUIRE_FALSE(looks.look(Rank{4}));
  REQUIRE_FALSE(looks.look(Rank{-1}));
  REQUIRE(looks.add(node(2, 2), "xyz").has_error());
  REQUIRE_FALSE(looks.progressed());
  RankLook on = still(3);
  on.progressed = true;
  REQUIRE(looks.add(node(2, 2), pack_looks(std::vector{on}).front()).has_value());
  REQUIRE(looks.progressed());
}

TEST_CASE("a look that cannot be read takes no other with it to the coordinator", "[unit][diagnosis]") {
  GatheredLooks looks{4};
  const std::string bad{"\x03\0\0\0bad", 7};
  REQUIRE(looks.add(node(2, 2), bad + pack_looks(std::vector{still(3)}).front()).has_value());
  REQUIRE(looks.look(Rank{3}) == still(3));
}

TEST_CASE("what is gathered has a limit, and the stacks of those who wait go first", "[unit][diagnosis]") {
  constexpr int world = 60;
  std::vector<RankLook> all;
  for (int rank = 0; rank < world; ++rank) {
    all.push_back(with_stack(rank == 30 ? at(still(rank), "0", "0-59", 4) : in(still(rank), "0", "0-59", 5)));
  }
  const std::string part = pack_looks(all).front();
  GatheredLooks whole{world};
  REQUIRE(whole.add(node(0, world), part).has_value());
  REQUIRE(whole.look(Rank{59}) == all[59]);

  SECTION("at the limit everything is kept") {
    GatheredLooks looks{world, whole.bytes()};
    REQUIRE(looks.add(node(0, world), part).has_value());
    REQUIRE(looks.bytes() == whole.bytes());
  }
  SECTION("one byte less costs the waiting ones their stacks") {
    GatheredLooks looks{world, whole.bytes() - 1};
    REQUIRE(looks.add(node(0, world), part).has_value());
    REQUIRE(looks.bytes() < whole.bytes());
    REQUIRE(looks.look(Rank{30})->frames.size() == 6);
    for (const int rank : {0, 29, 31, 59}) {
      REQUIRE(looks.look(Rank{rank})->frames.empty());
      REQUIRE(looks.look(Rank{rank})->collectives == all[0].collectives);
    }
  }
  SECTION("then all stacks, then whole ranks") {
    GatheredLooks looks{world, whole.bytes() / 3};
    REQUIRE(looks.add(node(0, world), part).has_value());
    REQUIRE(looks.bytes() <= whole.bytes() / 3);
    REQUIRE(looks.look(Rank{0})->frames.empty());
    REQUIRE(looks.look(Rank{0})->groups == all[0].groups);
    REQUIRE_FALSE(looks.look(Rank{59}));
    RankLook on = still(59);
    on.progressed = true;
    REQUIRE(looks.add(node(0, world), pack_looks(std::vector{on}).front()).has_value());
    REQUIRE_FALSE(looks.look(Rank{59}));
    REQUIRE(looks.progressed());  // for that there is room
  }
}

TEST_CASE("without its stack a rank is judged as with it", "[unit][diagnosis]") {
  const StackFrame inside{"wait", "/x/torch/distributed/distributed_c10d.py", 3000};
  RankLook look = with_stack(GENERATE(silent(1), still(1)));
  look.native = {"read"};
  look.kernel = "sleeping";
  SECTION("it tells whether it is in torch.distributed") {
    look.frames.insert(look.frames.begin() + 3, inside);
    const RankLook less = without_stack(look);
    REQUIRE(less.frames == std::vector{inside});
    REQUIRE((less.native.empty() && less.kernel.empty()));
    REQUIRE(without_stack(less) == less);
  }
  SECTION("and else nothing") { REQUIRE(without_stack(look).frames.empty()); }
}

TEST_CASE("ranks of which nothing is known take up nothing", "[unit][diagnosis]") {
  GatheredLooks looks{looked_ranks_max};
  REQUIRE(looks.bytes() == 0);
  REQUIRE(looks.add(node(5, 2), pack_looks(std::vector{still(5)}).front()).has_value());
  REQUIRE(looks.bytes() < 1024);
}

TEST_CASE("of a job with too many ranks nothing is kept beyond the limit", "[unit][diagnosis]") {
  REQUIRE(GatheredLooks{looked_ranks_max}.world_size() == looked_ranks_max);
  REQUIRE(GatheredLooks{looked_ranks_max + 1}.world_size() == looked_ranks_max);
  REQUIRE(GatheredLooks{-1}.world_size() == 0);
}
