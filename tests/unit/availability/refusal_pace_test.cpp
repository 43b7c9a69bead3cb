#include "rendezvous/core/port/refusal_pace.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

TEST_CASE("of each address one refusal a minute is told", "[unit][refusal_pace]") {
  const TimePoint t0{};
  RefusalPace pace;
  REQUIRE(pace.tells("10.0.0.1", t0));
  REQUIRE_FALSE(pace.tells("10.0.0.1", t0 + 1s));
  REQUIRE(pace.tells("10.0.0.2", t0 + 1s));
  REQUIRE_FALSE(pace.tells("10.0.0.1", t0 + 1min - 1ns));
  REQUIRE(pace.tells("10.0.0.1", t0 + 1min));
}

TEST_CASE("who comes from ever new addresses fills no memory", "[unit][refusal_pace]") {
  const TimePoint t0{};
  RefusalPace pace;
  for (std::size_t i = 0; i < RefusalPace::addresses_max; ++i) REQUIRE(pace.tells(std::to_string(i), t0));
  REQUIRE_FALSE(pace.tells("one more", t0 + 1s));
  REQUIRE(pace.tells("one more", t0 + 1min));
}
