#include "rendezvous/core/membership/loss_record.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

TEST_CASE("a host is put aside after its third loss, until the first is old", "[unit][loss_record]") {
  const TimePoint t0{};
  LossRecord record{{.losses_max = 3, .window = 5min}};
  record.lost("a", t0);
  record.lost("a", t0 + 1min);
  REQUIRE_FALSE(record.aside_until("a", t0 + 1min));
  record.lost("a", t0 + 2min);
  REQUIRE(record.aside_until("a", t0 + 2min) == t0 + 5min);
  REQUIRE_FALSE(record.aside_until("b", t0 + 2min));
  REQUIRE(record.aside_until("a", t0 + 5min - 1ns));
  REQUIRE_FALSE(record.aside_until("a", t0 + 5min));
  SECTION("a later loss counts from the second") {
    record.lost("a", t0 + 5min);
    REQUIRE(record.aside_until("a", t0 + 5min) == t0 + 6min);
  }
  SECTION("or is forgiven") {
    record.lost("a", t0 + 5min);
    record.forgive("a");
    REQUIRE_FALSE(record.aside_until("a", t0 + 5min));
  }
}

TEST_CASE("losses are remembered for as long as they count, and no more than so many", "[unit][loss_record]") {
  const TimePoint t0{};
  LossRecord record{{.losses_max = 1, .window = 5min}};
  for (std::size_t i = 0; i < losses_kept_max; ++i) record.lost("h" + std::to_string(i), t0 + i * 1ms);
  REQUIRE(record.host_count() == losses_kept_max);
  REQUIRE(record.aside_until("h0", t0 + 1min));
  record.lost("one more", t0 + 1min);
  REQUIRE(record.host_count() == losses_kept_max);
  REQUIRE_FALSE(record.aside_until("h0", t0 + 1min));
  REQUIRE(record.aside_until("h1", t0 + 1min));
  REQUIRE_FALSE(record.aside_until("none", t0 + 6min));
  REQUIRE(record.host_count() == 0);
}
