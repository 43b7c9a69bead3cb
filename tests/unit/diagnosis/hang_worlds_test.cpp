// Worlds of ranks in several groups, in which one thing goes wrong: the verdict names it.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <random>

#include "looks.hpp"
#include "rendezvous/core/diagnosis/closed_circles.hpp"
#include "rendezvous/core/diagnosis/hang_verdict.hpp"

using namespace torchup;
using namespace torchup::looks;

namespace {

/// Ranks in rows and columns. Each belongs to the world's group, to its row's and to its column's, and does the same
/// list of collectives in them over and over; nobody enters one before all have left the one before it.
class World {
 public:
  World(std::uint32_t seed, int rows, int columns) : chance_{seed}, rows_{rows}, columns_{columns} {
    for (int i = 0; i < size(); ++i) {
      looks_.push_back(pick(2) == 0 ? still(i) : moving(i));
      const auto number = [&](const std::string& group) { return 100 + static_cast<std::int64_t>(group.size()); };
      for (const auto& [name, members] : groups_of(i)) looks_.back() = at(looks_.back(), name, members, number(name));
    }
  }
  int size() const { return rows_ * columns_; }
  int pick(int count) { return static_cast<int>(chance_() % static_cast<std::uint32_t>(count)); }
  RankLook& operator[](int rank) { return looks_[static_cast<std::size_t>(rank)]; }
  std::vector<std::pair<std::string, std::string>> groups_of(int rank) const {
    const int row = rank / columns_, column = rank % columns_;
    const auto stretch = [](int first, int last, int step) {
      if (first == last) return std::to_string(first);
      std::vector<Rank> all;
      for (int i = first; i <= last; i += step) all.emplace_back(i);
      return to_text(RankSet{all});
    };
    return {{"w", stretch(0, size() - 1, 1)},
            {"row", stretch(row * columns_, row * columns_ + columns_ - 1, 1)},
            {"column", stretch(column, column + (rows_ - 1) * columns_, columns_)}};
  }
  /// The rank enters the group's next collective and is still there.
  void enter(int rank, const std::string& group, const std::string& operation = "all_reduce",
             std::int64_t elements = 64) {
    for (GroupPosition& position : (*this)[rank].groups) {
      if (position.name != group) continue;
      (*this)[rank].collectives.push_back(call(group, ++position.number, operation, elements));
    }
    (*this)[rank].moving = (*this)[rank].moving && pick(2) == 0;  // some spin while they wait
  }
  std::vector<int> members(int rank, const std::string& group) const {
    std::vector<int> all;
    for (const auto& [name, text] : groups_of(rank)) {
      if (name != group) continue;
      for (const Rank member : ranks(text).below(size())) all.push_back(member.value());
    }
    return all;
  }
  /// All but `culprit` go as far as they come: its row and column wait for it in their groups, the others in the
  /// world's.
  void wait_for(int culprit) {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == culprit) continue;
      if (rank / columns_ == culprit / columns_ && columns_ > 1) {
        enter(rank, "row");
      } else if (rank % columns_ == culprit % columns_ && rows_ > 1) {
        enter(rank, "column");
      } else {
        enter(rank, "w");
      }
    }
  }
  HangVerdict verdict() {
    std::shuffle(looks_.begin(), looks_.end(), chance_);
    return judge_hang(size(), looks_);
  }

 private:
  std::mt19937 chance_;
  int rows_, columns_;
  std::vector<RankLook> looks_;
};

World world_of(std::uint32_t seed) {
  std::mt19937 chance{seed};
  const auto columns = 2 + static_cast<int>(chance() % 5);
  return World{seed, 1 + static_cast<int>(chance() % 5), columns};
}

}  // namespace

TEST_CASE("in a random world the rank that the others wait for is named", "[unit][diagnosis]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    World world = world_of(seed);
    const int culprit = world.pick(world.size());
    const int fault = world.pick(4);
    INFO("seed " << seed << ", fault " << fault << " of rank " << culprit << " of " << world.size());
    RankLook& look = world[culprit];
    look.moving = fault == 2;
    if (fault == 0) look.state = 'T';
    if (fault != 2 && world.pick(2) == 0) {  // its helper is stopped with it, or the lock is held
      look.groups_known = false;
      look.groups.clear();
    }
    if (fault == 3) {
      look.raised_ns = 5;
      const int other = (culprit + 1) % world.size();
      world[other].raised_ns = 1;
      world[other].raised_consequence = true;
    }
    world.wait_for(culprit);
    const HangVerdict verdict = world.verdict();
    REQUIRE(verdict.culprits == list({culprit}));
    REQUIRE(verdict.kind == std::array{HangKind::stopped, HangKind::stuck, HangKind::busy,
                                       HangKind::raised}[static_cast<std::size_t>(fault)]);
    REQUIRE(verdict.collective->missing.contains(Rank{culprit}));
  }
}

TEST_CASE("in a random world the rank with another operation or size is named", "[unit][diagnosis]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    World world = world_of(seed);
    const int culprit = world.pick(world.size());
    const std::string group = world.pick(2) == 0 ? "w" : "row";
    const bool size = world.pick(2) == 0;
    INFO("seed " << seed << ", rank " << culprit << " of " << world.size() << " in " << group);
    const auto members = world.members(culprit, group);
    for (const int rank : members) {
      if (rank != culprit) world.enter(rank, group);
    }
    world.enter(culprit, group, size ? "all_reduce" : "broadcast", size ? 65 : 64);
    const HangVerdict verdict = world.verdict();
    REQUIRE(verdict.kind == HangKind::mismatch);
    REQUIRE(verdict.culprits == (members.size() == 2 ? list({members[0], members[1]}) : list({culprit})));
    REQUIRE(verdict.collective->operations.size() == 2);
  }
}

TEST_CASE("in a random world two ranks that take two groups in another order are named", "[unit][diagnosis]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 chance{seed};
    World world{seed, 2 + static_cast<int>(chance() % 4), 2 + static_cast<int>(chance() % 4)};
    // One goes to its row first, another of its row to the world's: everybody else is in the world's.
    const int one = world.pick(world.size());
    const auto row = world.members(one, "row");
    const int columns = static_cast<int>(row.size());
    INFO("seed " << seed << ", rank " << one << " of " << world.size());
    for (int rank = 0; rank < world.size(); ++rank) world.enter(rank, rank == one ? "row" : "w");
    const HangVerdict verdict = world.verdict();
    REQUIRE(verdict.kind == HangKind::order);
    // The row waits for it in the world's, and it for the row.
    std::vector<Rank> circle;
    for (int rank = 0; rank < columns; ++rank) circle.emplace_back(row[static_cast<std::size_t>(rank)]);
    REQUIRE(verdict.culprits == circle);
  }
}

TEST_CASE("in a random world where all are there it is the network", "[unit][diagnosis]") {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    World world = world_of(seed);
    for (const int rank : world.members(world.pick(world.size()), world.pick(2) == 0 ? "w" : "row")) {
      world.enter(rank, world.members(rank, "row").size() > 1 ? "row" : "w");
    }
    INFO("seed " << seed);
    REQUIRE(world.verdict().kind == HangKind::network);
  }
}

TEST_CASE("in a random world the one that a pipeline waits for is named", "[unit][diagnosis]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    World world = world_of(seed);
    const int culprit = world.pick(world.size());
    INFO("seed " << seed << ", rank " << culprit << " of " << world.size());
    world[culprit].moving = false;
    const bool known = world.pick(2) == 0;  // NCCL names the peer, gloo does not
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank == culprit) continue;
      if (known) {
        world[rank] = with_peer(world[rank], "nccl:recv", rank < culprit ? rank + 1 : rank - 1);
      } else {
        world[rank] = in_recv(world[rank]);
      }
    }
    const HangVerdict verdict = world.verdict();
    REQUIRE(verdict.kind == HangKind::stuck);
    REQUIRE(verdict.culprits == list({culprit}));
  }
}

TEST_CASE("in a random healthy world nobody is named but those who work", "[unit][diagnosis]") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    World world = world_of(seed);
    INFO("seed " << seed << ", " << world.size() << " ranks");
    // Some compute, the others wait for them: an evaluation, a checkpoint, a slow batch.
    std::vector<int> workers;
    const int first = world.pick(world.size());
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank == first || world.pick(4) == 0) {
        world[rank].moving = true;
        workers.push_back(rank);
      } else {
        world.enter(rank, "w");
      }
    }
    const HangVerdict verdict = world.verdict();
    REQUIRE(verdict.kind == HangKind::busy);
    REQUIRE(decision_for(verdict.kind, OnHang::restart, false).action == HangAction::none);
    REQUIRE(verdict.culprits.size() == workers.size());
    for (std::size_t i = 0; i < workers.size(); ++i) REQUIRE(verdict.culprits[i] == Rank{workers[i]});
  }
}

TEST_CASE("closed circles are what the definition says", "[unit][diagnosis]") {
  std::mt19937 chance{3};
  for (int turn = 0; turn < 400; ++turn) {
    const std::size_t nodes = 1 + chance() % 9;
    std::vector<std::vector<bool>> reach(nodes, std::vector<bool>(nodes));
    Arrows arrows;
    for (std::size_t node = 0; node < nodes; ++node) {
      for (std::size_t target = 0; target < nodes; ++target) {
        if (chance() % nodes != 0) continue;
        arrows.to.push_back(target);
        reach[node][target] = true;
      }
      arrows.end_node();
    }
    for (std::size_t via = 0; via < nodes; ++via) {
      for (std::size_t from = 0; from < nodes; ++from) {
        for (std::size_t to = 0; to < nodes; ++to)
          reach[from][to] = reach[from][to] || (reach[from][via] && reach[via][to]);
      }
    }
    const auto found = in_closed_circle(arrows);
    for (std::size_t node = 0; node < nodes; ++node) {
      bool closed = true, others = false;
      for (std::size_t other = 0; other < nodes; ++other) {
        if (other == node || !reach[node][other]) continue;
        others = true;
        closed = closed && reach[other][node];
      }
      REQUIRE(found[node] == (closed && others));
    }
  }
  // As long as a job is large, and no recursion.
  Arrows ring;
  constexpr std::size_t large = 1'000'000;
  for (std::size_t node = 0; node < large; ++node) {
    ring.to.push_back((node + 1) % large);
    ring.end_node();
  }
  REQUIRE(in_closed_circle(ring) == std::vector<bool>(large, true));
}

namespace {

/// Rows of 8, as tensor-parallel groups are; everybody is in the world's group, and a rank's columns are 12,500 long.
std::vector<RankLook> large_world(int size, int culprit) {
  constexpr int row = 8;
  std::vector<RankLook> looks;
  const std::string world = "0-" + std::to_string(size - 1);
  for (int rank = 0; rank < size; ++rank) {
    const int first = rank / row * row;
    const auto column = std::to_string(rank % row) + "-" + std::to_string(size - row + rank % row) + ":8";
    RankLook look = at(at(still(rank), "row", std::to_string(first) + "-" + std::to_string(first + row - 1), 77),
                       "column", column, 5);
    looks.push_back(rank == culprit ? at(look, "w", world, 10) : in(look, "w", world, 11));
  }
  return looks;
}

}  // namespace

TEST_CASE("a hundred thousand ranks are judged", "[unit][diagnosis][many]") {
  const HangVerdict verdict = judge_hang(100'000, large_world(100'000, 70'007));
  REQUIRE(verdict.kind == HangKind::stuck);
  REQUIRE(verdict.culprits == list({70'007}));
  REQUIRE(verdict.collective->waiting == ranks("0-70006,70008-99999"));
}

TEST_CASE("in a large world everybody may wait", "[unit][diagnosis]") {
  // All wait in the world's group for one, which waits in its row's.
  constexpr int size = 20'000;
  auto looks = large_world(size, 7'007);
  looks[7'007].groups[0].number = 78;
  looks[7'007].collectives.push_back(call("row", 78));
  const HangVerdict verdict = judge_hang(size, looks);
  REQUIRE(verdict.kind == HangKind::order);
  REQUIRE(verdict.culprits == list({7'000, 7'001, 7'002, 7'003, 7'004, 7'005, 7'006, 7'007}));
}

TEST_CASE("groups that ranks make up are looked up to a limit, behind those of many", "[unit][diagnosis][many]") {
  constexpr int size = 2'000;
  auto looks = large_world(size, 1'707);
  for (RankLook& look : looks) {
    look = in(std::move(look), "made up " + std::to_string(look.rank.value()), "0-1073741823", 3);
  }
  REQUIRE(judge_hang(size, looks).culprits == list({1'707}));
}
