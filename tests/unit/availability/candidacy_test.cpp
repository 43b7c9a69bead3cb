#include "rendezvous/core/seat/candidacy.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

using Actions = std::vector<candidacy::Action>;
constexpr TimePoint t0{};
const std::vector<Endpoint> other_place{{"10.0.0.9", Port{4711}}};

template <class What>
const What& only(const Actions& actions) {
  const What* found = nullptr;
  for (const auto& action : actions) {
    if (const auto* what = std::get_if<What>(&action)) {
      if (found != nullptr) FAIL("twice");
      found = what;
    }
  }
  if (found == nullptr) FAIL("not done");
  return *found;
}
template <class What>
bool done(const Actions& actions) {
  return std::ranges::any_of(actions, [](const auto& action) { return std::holds_alternative<What>(action); });
}

candidacy::View vacant(std::int64_t revision) { return {.revision = etcd::Revision{revision}}; }
candidacy::View held(std::int64_t revision, std::int64_t term, std::int64_t lease = 99) {
  return {.revision = etcd::Revision{revision},
          .term = Term{term},
          .lease = etcd::LeaseId{lease},
          .holder = {.endpoints = other_place}};
}

/// A candidate and the numbers of what it asked last.
struct Candidate {
  Candidacy machine{{.lease = 10s, .campaign_wait = 40ms}, t0};
  std::uint64_t look = 0, grant = 0, take = 0, renew = 0;

  Actions tell(const candidacy::Event& event, TimePoint now) {
    Actions actions = machine.step(event, now);
    for (const auto& action : actions) {
      if (const auto* asked = std::get_if<candidacy::Look>(&action)) look = asked->number;
      if (const auto* asked = std::get_if<candidacy::Grant>(&action)) grant = asked->number;
      if (const auto* asked = std::get_if<candidacy::Take>(&action)) take = asked->number;
      if (const auto* asked = std::get_if<candidacy::Renew>(&action)) renew = asked->number;
    }
    return actions;
  }
  Actions wake(TimePoint now) { return tell(candidacy::Wake{}, now); }
  Actions saw(const candidacy::View& view, TimePoint now) { return tell(candidacy::Read{look, view}, now); }

  /// Takes a vacant seat at t0 + 40 ms as term 7 under lease 5.
  Actions hold() {
    wake(t0);
    saw(vacant(3), t0);
    wake(t0 + 40ms);
    tell(candidacy::Granted{grant, etcd::LeaseId{5}}, t0 + 40ms);
    return tell(candidacy::Taken{take, Term{7}}, t0 + 40ms);
  }
};

}  // namespace

TEST_CASE("a vacant seat is taken after the wait, under a lease, if it is still as it was", "[unit][seat]") {
  Candidate one;
  REQUIRE(one.wake(t0) == Actions{candidacy::Look{1}});
  REQUIRE(one.saw(vacant(3), t0).empty());
  REQUIRE(one.machine.deadline() == t0 + 40ms);
  REQUIRE(one.wake(t0 + 40ms - 1ns).empty());
  REQUIRE(only<candidacy::Grant>(one.wake(t0 + 40ms)).ttl == 5s);
  const auto take = only<candidacy::Take>(one.tell(candidacy::Granted{one.grant, etcd::LeaseId{5}}, t0 + 41ms));
  REQUIRE(take.was == Term{0});
  REQUIRE(take.lease == etcd::LeaseId{5});
  REQUIRE(one.machine.role() == Candidacy::Role::seeking);
  const auto serve = only<candidacy::Serve>(one.tell(candidacy::Taken{one.take, Term{7}}, t0 + 42ms));
  REQUIRE(serve == candidacy::Serve{.term = Term{7}});
  REQUIRE(one.machine.role() == Candidacy::Role::holding);
  REQUIRE(one.machine.seated());
}

TEST_CASE("who sees another before the wait is over does not campaign", "[unit][seat]") {
  Candidate one;
  one.wake(t0);
  one.saw(vacant(3), t0);
  one.tell(candidacy::Hint{}, t0 + 10ms);
  const auto attend = only<candidacy::Attend>(one.saw(held(4, 4), t0 + 12ms));
  REQUIRE(attend == candidacy::Attend{Term{4}, other_place});
  REQUIRE_FALSE(done<candidacy::Grant>(one.wake(t0 + 60ms)));
  SECTION("it attends once") { REQUIRE_FALSE(done<candidacy::Attend>((one.wake(t0 + 2s), one.saw(held(5, 4), t0 + 2s)))); }
  SECTION("placed, it asks etcd nothing") {
    one.tell(candidacy::Attached{Term{4}}, t0 + 20ms);
    REQUIRE_FALSE(one.machine.deadline());
    REQUIRE(done<candidacy::Look>(one.tell(candidacy::Doubted{}, t0 + 60s)));
    REQUIRE_FALSE(done<candidacy::Grant>(one.saw(held(9, 4), t0 + 60s)));  // a silent holder's seat is waited for
  }
}

TEST_CASE("a seat whose holder's end is proved is taken from its term, and the tenure says so", "[unit][seat]") {
  Candidate one;
  one.wake(t0);
  one.saw(held(4, 4), t0);
  one.tell(candidacy::Attached{Term{4}}, t0);
  REQUIRE(done<candidacy::Look>(one.tell(candidacy::HolderEnded{Term{4}}, t0 + 1s)));
  one.saw(held(6, 4), t0 + 1s);
  one.wake(t0 + 1s + 40ms);
  REQUIRE(only<candidacy::Take>(one.tell(candidacy::Granted{one.grant, etcd::LeaseId{5}}, t0 + 1041ms)).was == Term{4});
  const auto serve = only<candidacy::Serve>(one.tell(candidacy::Taken{one.take, Term{8}}, t0 + 1042ms));
  REQUIRE(serve == candidacy::Serve{.term = Term{8}, .before = Term{4}, .proved = true});
}

TEST_CASE("the end of an earlier holder proves nothing of the present one", "[unit][seat]") {
  Candidate one;
  one.wake(t0);
  one.saw(held(6, 6), t0);
  one.tell(candidacy::HolderEnded{Term{4}}, t0 + 1s);
  REQUIRE(one.machine.role() == Candidacy::Role::standing_by);
  REQUIRE_FALSE(done<candidacy::Grant>(one.wake(t0 + 5s)));
}

TEST_CASE("a seat vacated under its holder is taken again at once as a new tenure", "[unit][seat]") {
  Candidate one;
  one.hold();
  REQUIRE(done<candidacy::Confirm>(one.saw(held(8, 7, 5), t0 + 50ms)));
  one.wake(t0 + 1050ms);
  REQUIRE(done<candidacy::Grant>(one.saw(vacant(9), t0 + 1051ms)));
  REQUIRE_FALSE(one.machine.seated());
  REQUIRE(one.machine.role() == Candidacy::Role::holding);
  one.tell(candidacy::Granted{one.grant, etcd::LeaseId{6}}, t0 + 1052ms);
  const auto serve = only<candidacy::Serve>(one.tell(candidacy::Taken{one.take, Term{10}}, t0 + 1053ms));
  REQUIRE(serve == candidacy::Serve{.term = Term{10}, .before = Term{7}});
}

TEST_CASE("a holder that sees another's term yields, and vacates nothing of the other's", "[unit][seat]") {
  Candidate one;
  one.hold();
  const auto actions = one.saw(held(12, 11), t0 + 60ms);
  REQUIRE(actions == Actions{candidacy::Yield{Term{11}, other_place}, candidacy::Revoke{etcd::LeaseId{5}},
                             candidacy::Attend{Term{11}, other_place}});
  REQUIRE(one.machine.role() == Candidacy::Role::standing_by);
  REQUIRE_FALSE(done<candidacy::Renew>(one.wake(t0 + 10s)));
}

TEST_CASE("a holder that hears where a later one is goes there, though etcd tells it nothing", "[unit][seat]") {
  Candidate one;
  one.hold();
  const auto actions = one.tell(candidacy::Outvoted{Term{9}, other_place}, t0 + 2s);
  REQUIRE(only<candidacy::Yield>(actions) == candidacy::Yield{Term{9}, other_place});
  REQUIRE(only<candidacy::Attend>(actions) == candidacy::Attend{Term{9}, other_place});
  REQUIRE(one.machine.role() == Candidacy::Role::standing_by);
  one.tell(candidacy::Failed{one.look}, t0 + 4s);
  one.tell(candidacy::Attached{Term{9}}, t0 + 4s);
  REQUIRE_FALSE(one.machine.deadline());
}

TEST_CASE("a greater term by hearsay silences a holder at once", "[unit][seat]") {
  Candidate one;
  one.hold();
  REQUIRE_FALSE(done<candidacy::Yield>(one.tell(candidacy::Outvoted{Term{7}}, t0 + 50ms)));
  REQUIRE(only<candidacy::Yield>(one.tell(candidacy::Outvoted{Term{9}}, t0 + 51ms)) == candidacy::Yield{Term{9}, {}});
  REQUIRE(one.machine.greatest_term() == Term{9});
  REQUIRE_FALSE(one.machine.seated());
}

TEST_CASE("a lost answer to the taking is asked for, and the tenure begins with a txn that read the state",
          "[unit][seat]") {
  Candidate one;
  one.wake(t0);
  one.saw(vacant(3), t0);
  one.wake(t0 + 40ms);
  one.tell(candidacy::Granted{one.grant, etcd::LeaseId{5}}, t0 + 40ms);
  one.tell(candidacy::Failed{one.take}, t0 + 2040ms);
  one.wake(t0 + 2090ms);
  const auto take = only<candidacy::Take>(one.saw(held(8, 7, 5), t0 + 2091ms));
  REQUIRE(take.was == Term{7});
  REQUIRE(one.machine.role() == Candidacy::Role::seeking);
  REQUIRE(only<candidacy::Serve>(one.tell(candidacy::Taken{one.take, Term{9}}, t0 + 2092ms)).term == Term{9});
}

TEST_CASE("an answer that goes back in time decides nothing", "[unit][seat]") {
  Candidate one;
  one.hold();
  REQUIRE(one.saw(vacant(6), t0 + 50ms).empty());
  REQUIRE(one.machine.seated());
  REQUIRE(done<candidacy::Look>(one.wake(t0 + 100ms)));
}

TEST_CASE("proof counts from the sending of the read", "[unit][seat]") {
  Candidate one;
  const Actions began = one.hold();
  REQUIRE(done<candidacy::Look>(began));
  REQUIRE(only<candidacy::Confirm>(one.saw(held(8, 7, 5), t0 + 1s)).sent == t0 + 40ms);
}

TEST_CASE("etcd away changes nothing for a holder, and it is asked less and less often", "[unit][seat]") {
  Candidate one;
  one.hold();
  TimePoint now = t0 + 50ms;
  int looks = 0;
  for (; now < t0 + 60s; now = *one.machine.deadline()) {
    looks += done<candidacy::Look>(one.wake(now));
    REQUIRE_FALSE(done<candidacy::Yield>(one.tell(candidacy::Failed{one.look}, now)));
    one.tell(candidacy::Failed{one.renew}, now);
  }
  REQUIRE(looks < 70);
  REQUIRE(one.machine.role() == Candidacy::Role::holding);
}

TEST_CASE("a holder that hears nothing of etcd for as long as a seat lasts holds on, and says that others shall look",
          "[unit][seat]") {
  Candidate one;
  one.hold();
  const TimePoint sent = t0 + 40ms;  // its txn, and the look behind it
  TimePoint now = sent;
  const auto look_again = [&] {
    while (!done<candidacy::Look>(one.wake(now))) {
      one.tell(candidacy::Failed{one.renew}, now);
      now = one.machine.deadline().value();
    }
  };
  while (now < sent + 8s) {
    REQUIRE_FALSE(done<candidacy::Yield>(one.tell(candidacy::Failed{one.look}, now)));
    REQUIRE(one.machine.seated() == (now < sent + seat_ttl(10s)));
    look_again();
  }
  REQUIRE(one.machine.role() == Candidacy::Role::holding);
  one.saw(held(8, 7, 5), now);
  REQUIRE(one.machine.seated());
}

TEST_CASE("who is refused by etcd asks it every ten seconds", "[unit][seat]") {
  Candidate one;
  one.wake(t0);
  one.tell(candidacy::Failed{one.look, true}, t0 + 60ms);
  REQUIRE(one.machine.deadline() == t0 + 60ms + 10s);
}

TEST_CASE("a dead lease is replaced while the seat is still ours", "[unit][seat]") {
  Candidate one;
  one.hold();
  one.saw(held(8, 7, 5), t0 + 50ms);
  REQUIRE(done<candidacy::Renew>(one.wake(t0 + 40ms + Duration{5s} / 3)));
  one.saw(held(8, 7, 5), t0 + 1800ms);
  one.tell(candidacy::Renewed{one.renew, false}, t0 + 1801ms);
  const auto actions = one.saw(held(9, 7, 5), t0 + 1802ms);
  REQUIRE(done<candidacy::Confirm>(actions));
  REQUIRE(done<candidacy::Grant>(actions));
  REQUIRE_FALSE(done<candidacy::Yield>(actions));
}

TEST_CASE("who leaves gives the seat back and never takes it again", "[unit][seat]") {
  Candidate one;
  SECTION("as holder") {
    one.hold();
    REQUIRE(one.tell(candidacy::Leave{}, t0 + 1s) ==
            Actions{candidacy::Vacate{Term{7}, etcd::LeaseId{5}}, candidacy::Yield{Term{7}, {}}});
  }
  SECTION("while its txn is on its way") {
    one.wake(t0);
    one.saw(vacant(3), t0);
    one.wake(t0 + 40ms);
    one.tell(candidacy::Granted{one.grant, etcd::LeaseId{5}}, t0 + 40ms);
    REQUIRE(one.tell(candidacy::Leave{}, t0 + 41ms) == Actions{candidacy::Revoke{etcd::LeaseId{5}}});
    REQUIRE_FALSE(done<candidacy::Serve>(one.tell(candidacy::Taken{one.take, Term{7}}, t0 + 42ms)));
  }
  REQUIRE(one.machine.role() == Candidacy::Role::left);
  REQUIRE_FALSE(one.machine.deadline());
  REQUIRE(one.saw(vacant(9), t0 + 43ms).empty());  // a look that was on its way
  REQUIRE(one.wake(t0 + 5s).empty());
  REQUIRE(one.machine.role() == Candidacy::Role::left);
}

TEST_CASE("the seat's lease and the wait have their bounds", "[unit][seat]") {
  REQUIRE(seat_ttl(1s) == 2s);
  REQUIRE(seat_ttl(6s) == 3s);
  REQUIRE(seat_ttl(60s) == 5s);
  REQUIRE(campaign_wait_of(GroupRank{0}) == 0s);
  REQUIRE(campaign_wait_of(GroupRank{3}) == 60ms);
  REQUIRE(campaign_wait_of(GroupRank{12499}) == 1s);
}
