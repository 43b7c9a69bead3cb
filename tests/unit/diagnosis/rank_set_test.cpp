#include "rendezvous/core/diagnosis/rank_set.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "looks.hpp"

using namespace torchup;

TEST_CASE("a set of ranks is as short as its stretches", "[unit][diagnosis]") {
  const auto text = [](std::initializer_list<int> ranks) { return to_text(RankSet{looks::list(ranks)}); };
  REQUIRE(text({}) == "");
  REQUIRE(text({5}) == "5");
  REQUIRE(text({3, 1, 2, 0, 2}) == "0-3");
  REQUIRE(text({0, 4}) == "0,4");
  REQUIRE(text({0, 4, 8}) == "0-8:4");
  REQUIRE(text({0, 1, 5, 9, 13}) == "0-1,5-13:4");
  REQUIRE(text({0, 5, 6, 7}) == "0,5-7");
}

TEST_CASE("a set of ranks is read as it was written", "[unit][diagnosis]") {
  std::mt19937 chance{7};
  for (int turn = 0; turn < 500; ++turn) {
    std::set<int> numbers;
    for (auto count = chance() % 40; count > 0; --count) numbers.insert(static_cast<int>(chance() % 80));
    std::vector<Rank> all;
    for (const int number : numbers) all.emplace_back(number);
    const RankSet made{all};
    INFO(to_text(made));
    REQUIRE(parse_rank_set(to_text(made)).value() == made);
    REQUIRE(made.size() == static_cast<std::int64_t>(all.size()));
    REQUIRE(made.below(80) == all);
    for (int rank = -1; rank < 81; ++rank) REQUIRE(made.contains(Rank{rank}) == numbers.contains(rank));
  }
  REQUIRE(looks::ranks("0-7,12-60:4").below(16) == looks::list({0, 1, 2, 3, 4, 5, 6, 7, 12}));
}

TEST_CASE("what is no set of ranks is refused", "[unit][diagnosis]") {
  for (const char* text : {",", "1,", "-1", "a", "1-", "3-1", "1-1", "0-7:0", "0-7:2", "0-8:4x", "1,1", "4,2", "0-7,5",
                           "0-8:4,1-9:4", " 1", "1 ", "99999999999", "0-1073741824", "+1"}) {
    INFO(text);
    REQUIRE(parse_rank_set(text).error().code == make_error_code(errc::bad_value));
  }
  REQUIRE(parse_rank_set("0-1073741823").value().size() == world_size_max);
  REQUIRE(parse_rank_set("0-1073741823").value().below(3) == looks::list({0, 1, 2}));
  std::string text = "0";
  for (std::size_t run = 1; run < rank_runs_max; ++run) text += "," + std::to_string(3 * run);
  REQUIRE(parse_rank_set(text).has_value());
  REQUIRE(parse_rank_set(text + ",99999").error().code == make_error_code(errc::limit_exceeded));
}
