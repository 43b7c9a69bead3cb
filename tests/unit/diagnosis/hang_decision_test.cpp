// What is done about a hang, and to whom.
#include "tests/unit/diagnosis/silent_job.hpp"

using namespace torchup;
using namespace torchup::silent_job;

TEST_CASE("what is done is what was wanted, and not again while it may be heard of", "[unit][diagnosis]") {
  const auto act = [](HangSettings settings, const RankLook& rank_3) {
    Job job{settings};
    REQUIRE(job.silent(64s, t0) == examine(0));
    const Found hang = found(job.answer_both(0, rank_3, t0));
    const bool again = !job.silent(1000s, t0 + action_patience - 1ns).empty();
    REQUIRE(again == (hang.action == HangAction::none));
    if (!again) REQUIRE(job.tell(a, running(1060s), t0 + action_patience) == examine(1));  // nobody has heard of it
    REQUIRE((hang.action == HangAction::none ? hang.ended.empty() : hang.ended == hang.verdict->culprits));
    return hang.action;
  };
  const HangTimeout given{.mode = HangTimeout::Mode::given, .silence = 60s};
  REQUIRE(act({.on_hang = OnHang::report}, still(3)) == HangAction::none);
  REQUIRE(act({.on_hang = OnHang::abort}, still(3)) == HangAction::abort);
  REQUIRE(act({.on_hang = OnHang::restart}, still(3)) == HangAction::restart);
  REQUIRE(act({.on_hang = OnHang::restart}, moving(3)) == HangAction::none);
  REQUIRE(act({.timeout = given, .on_hang = OnHang::restart}, moving(3)) == HangAction::restart);
  REQUIRE(act({.on_hang = OnHang::restart, .may_act = false}, still(3)) == HangAction::none);
}

namespace {

/// What is found in a job whose silence ends a look at rank 3, which is as given; by a job that is told to act.
Found found_of(Job& job, std::uint64_t number, Duration silence, RankLook rank_3) {
  REQUIRE(job.tell(a, running(silence + 1s), t0 + silence).empty());
  REQUIRE(job.tell(b, running(silence), t0 + silence) == examine(number));
  return found(job.answer_both(number, std::move(rank_3), t0 + silence + 1s));
}

const HangTimeout a_minute{.mode = HangTimeout::Mode::given, .silence = 60s};

}  // namespace

TEST_CASE("nobody is touched who was not seen, and the watch goes on", "[unit][diagnosis]") {
  Job job{{.timeout = a_minute, .on_hang = OnHang::restart}};
  const Found unseen = found_of(job, 0, 64s, RankLook{.rank = Rank{3}});
  REQUIRE(unseen.verdict->culprits == list({3}));
  REQUIRE((unseen.action == HangAction::none && unseen.spared == HangSpared::unseen && unseen.ended.empty()));
  const Found seen = found_of(job, 1, 128s, still(3));
  REQUIRE((seen.action == HangAction::restart && seen.ended == list({3})));
}

TEST_CASE("the ranks that wait for one that has ended are ended", "[unit][diagnosis]") {
  Job job{{.on_hang = OnHang::abort}};
  RankLook gone = silent(3);
  gone.state = state_dead;
  const Found hang = found_of(job, 0, 64s, gone);
  REQUIRE(hang.verdict->culprits == list({3}));
  REQUIRE((hang.action == HangAction::abort && hang.ended == list({0, 1, 2})));
}

TEST_CASE("where ranks move in what seems to be the network, a second look decides", "[unit][diagnosis]") {
  Job job{{.timeout = a_minute, .on_hang = OnHang::restart}};
  const RankLook spins = in(moving(3), "0", "0-3", 1234);
  const auto answer = [&](std::uint64_t number, Duration silence, const RankLook& rank_3) {
    REQUIRE(job.silent(silence, t0 + silence) == examine(number));
    REQUIRE(job.answer(a, number, {Job::waiting(0), Job::waiting(1)}, t0 + silence).empty());
    return found(job.answer(b, number, {Job::waiting(2), rank_3}, t0 + silence));
  };
  SECTION("where nobody moves there is no doubt") {
    const Found first = answer(0, 64s, Job::waiting(3));
    REQUIRE((first.action == HangAction::restart && first.ended.size() == 4));
    return;
  }
  const Found first = answer(0, 64s, spins);
  REQUIRE(first.verdict->kind == HangKind::network);
  REQUIRE((first.action == HangAction::none && first.spared == HangSpared::doubtful && first.ended.empty()));
  SECTION("at double the silence") {
    REQUIRE(job.silent(127s, t0 + 127s).empty());
    const Found second = answer(1, 128s, spins);
    REQUIRE((second.action == HangAction::restart && second.spared == HangSpared::nobody));
    REQUIRE(second.ended == list({0, 1, 2, 3}));
  }
  SECTION("which is the first again after progress") {
    REQUIRE(job.tell(a, running(1s), t0 + 70s).size() == 1);
    REQUIRE(job.tell(b, running(1s), t0 + 70s).empty());
    REQUIRE(answer(1, 90s, spins).spared == HangSpared::doubtful);
  }
  SECTION("or a look that sees some") {
    RankLook on = spins;
    on.progressed = true;
    REQUIRE(job.silent(128s, t0 + 128s) == examine(1));
    REQUIRE(job.answer_both(1, on, t0 + 128s).size() == 1);
    REQUIRE(answer(2, 256s, spins).spared == HangSpared::doubtful);
  }
}
