#include "rendezvous/core/seat/proof.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {
constexpr TimePoint t0{};
const NodeId a{"a"}, b{"b"}, stranger{"c"};
}  // namespace

TEST_CASE("proof is the younger of the seat's and of the members'", "[unit][proof]") {
  Proof proof;
  REQUIRE_FALSE(proof.at());
  proof.seated(t0 + 1s);
  REQUIRE(proof.age(t0 + 5s) == 4s);
  proof.seated(t0);  // an answer that comes late makes it no older
  REQUIRE(proof.at() == t0 + 1s);

  proof.round_runs({a, b});
  proof.answered(a, 1, t0 + 2s);
  proof.answered(b, 1, t0 + 3s);
  proof.answered(b, 2, t0 + 4s);
  REQUIRE(proof.at() == t0 + 1s);  // what is sent and not echoed proves nothing
  proof.echoed(b, 2);
  REQUIRE(proof.at() == t0 + 1s);  // of each member
  proof.echoed(a, 1);
  REQUIRE(proof.at() == t0 + 2s);  // the least of them
  proof.seated(t0 + 3s);
  REQUIRE(proof.at() == t0 + 3s);

  SECTION("not while a member is missing") {
    proof.answered(a, 2, t0 + 9s);
    proof.echoed(a, 2);
    proof.detached(b);
    REQUIRE(proof.at() == t0 + 3s);
    proof.echoed(b, 1);  // of its former line
    REQUIRE(proof.at() == t0 + 3s);
    proof.answered(b, 3, t0 + 8s);
    proof.echoed(b, 3);
    REQUIRE(proof.at() == t0 + 8s);
  }
  SECTION("not after a decision has ended the round") {
    proof.answered(a, 2, t0 + 9s);
    proof.answered(b, 3, t0 + 9s);
    proof.round_over();
    proof.echoed(a, 2);
    proof.echoed(b, 3);
    REQUIRE(proof.at() == t0 + 3s);
  }
  SECTION("nor by numbers that were not sent, nor by strangers") {
    proof.echoed(a, 77);
    proof.answered(stranger, 1, t0 + 20s);
    proof.echoed(stranger, 1);
    REQUIRE(proof.at() == t0 + 3s);
  }
  SECTION("an older echo takes nothing back") {
    proof.answered(a, 2, t0 + 9s);
    proof.answered(a, 3, t0 + 10s);
    proof.answered(b, 3, t0 + 9s);
    proof.echoed(b, 3);
    proof.echoed(a, 3);
    proof.echoed(a, 2);
    REQUIRE(proof.at() == t0 + 9s);
  }
}

TEST_CASE("answers that nobody echoes are forgotten from the oldest on", "[unit][proof]") {
  Proof proof;
  proof.round_runs({a});
  for (std::uint64_t number = 1; number <= Proof::unechoed_max + 1; ++number) {
    proof.answered(a, number, t0 + 1s * number);
  }
  proof.echoed(a, 1);
  REQUIRE_FALSE(proof.at());
  proof.echoed(a, 2);
  REQUIRE(proof.at() == t0 + 2s);
}
