#include "rendezvous/core/port/strangers.hpp"

#include <catch2/catch.hpp>
#include <vector>

using namespace torchup;
using namespace torchup::strangers;

namespace {

StrangerId id(std::uint64_t number) { return StrangerId{number}; }
std::optional<Drop> drop(std::uint64_t number) { return Drop{id(number)}; }

/// All who go when no descriptor is left, in their order.
std::vector<std::uint64_t> all_dropped(Strangers& strangers) {
  std::vector<std::uint64_t> gone;
  while (const auto who = strangers.step(NoDescriptor{})) gone.push_back(who->who.value());
  return gone;
}

}  // namespace

TEST_CASE("as many strangers stay as may, and with one more the one that came first goes", "[unit][strangers]") {
  Strangers strangers{3};
  for (std::uint64_t i = 0; i < 3; ++i) REQUIRE_FALSE(strangers.step(Came{id(i), "10.0.0.1"}));
  REQUIRE(strangers.count() == 3);
  REQUIRE(strangers.step(Came{id(3), "10.0.0.1"}) == drop(0));
  REQUIRE(strangers.count() == 3);
  REQUIRE(strangers.step(Came{id(4), "10.0.0.1"}) == drop(1));
}

TEST_CASE("who has said who it is makes room and is not dropped", "[unit][strangers]") {
  Strangers strangers{2};
  REQUIRE_FALSE(strangers.step(Came{id(0), "10.0.0.1"}));
  REQUIRE_FALSE(strangers.step(Came{id(1), "10.0.0.1"}));
  REQUIRE_FALSE(strangers.step(Settled{id(0)}));
  REQUIRE_FALSE(strangers.step(Settled{id(0)}));  // said twice, it counts once
  REQUIRE(strangers.count() == 1);
  REQUIRE_FALSE(strangers.step(Came{id(2), "10.0.0.1"}));
  REQUIRE(strangers.step(Came{id(3), "10.0.0.1"}) == drop(1));
}

TEST_CASE("of the address that has the most one goes, whoever came before it", "[unit][strangers]") {
  Strangers strangers{4};
  REQUIRE_FALSE(strangers.step(Came{id(0), "10.0.0.1"}));
  for (std::uint64_t i = 1; i < 4; ++i) REQUIRE_FALSE(strangers.step(Came{id(i), "10.0.0.66"}));
  for (std::uint64_t i = 4; i < 100; ++i) REQUIRE(strangers.step(Came{id(i), "10.0.0.66"}) == drop(i - 3));
  SECTION("so a newcomer from elsewhere pushes out one of the many") {
    REQUIRE(strangers.step(Came{id(100), "10.0.0.2"}) == drop(97));
  }
  SECTION("until they are as many as others, and then who came first") {
    REQUIRE(all_dropped(strangers) == std::vector<std::uint64_t>{97, 98, 0, 99});
  }
}

TEST_CASE("a newcomer never pushes out itself", "[unit][strangers]") {
  Strangers strangers{1};
  REQUIRE_FALSE(strangers.step(Came{id(0), "10.0.0.1"}));
  for (std::uint64_t i = 1; i < 10; ++i) {
    REQUIRE(strangers.step(Came{id(i), i % 2 ? "10.0.0.2" : "10.0.0.1"}) == drop(i - 1));
  }
}

TEST_CASE("where no descriptor is left all strangers may go, and then nobody", "[unit][strangers]") {
  Strangers strangers{10};
  REQUIRE_FALSE(strangers.step(NoDescriptor{}));
  for (std::uint64_t i = 0; i < 4; ++i) REQUIRE_FALSE(strangers.step(Came{id(i), i == 3 ? "fd00::1" : "10.0.0.1"}));
  REQUIRE(all_dropped(strangers) == std::vector<std::uint64_t>{0, 1, 2, 3});
  REQUIRE(strangers.count() == 0);
  REQUIRE_FALSE(strangers.step(Settled{id(3)}));  // its owner says so when it has closed it
}
