#include "tests/unit/diagnosis/silent_job.hpp"

using namespace torchup;
using namespace torchup::silent_job;

TEST_CASE("how long all may be silent", "[unit][diagnosis]") {
  const auto limit = [](const HangTimeout& timeout, std::vector<ProgressReport> reports) {
    ProgressTally tally;
    for (const ProgressReport& report : reports) tally.add(report);
    return tally.limit(timeout);
  };
  using Mode = HangTimeout::Mode;
  const HangTimeout automatic{}, off{.mode = Mode::off}, given{.mode = Mode::given, .silence = 20s},
      long_given{.mode = Mode::given, .silence = 400s}, started{.mode = Mode::given, .silence = 20s, .start = 40s};
  REQUIRE(limit(off, {running(0s)}) == std::nullopt);
  REQUIRE(limit(automatic, {}) == std::nullopt);
  REQUIRE(limit(automatic, {{.silence = 900s}}) == std::nullopt);
  REQUIRE(limit(automatic, {running(0s, 1s, 2s)}) == 60s);
  REQUIRE(limit(automatic, {running(0s, 6s, 2s)}) == 60s);
  REQUIRE(limit(automatic, {running(0s, 7s, 8s)}) == 70s);
  REQUIRE(limit(automatic, {running(0s, 7s, 40s)}) == 80s);
  REQUIRE(limit(automatic, {running(0s, 7s, 40s), running(0s, 9s, 9s)}) == 90s);
  REQUIRE(limit(automatic, {starting(0s), starting(0s)}) == 300s);
  REQUIRE(limit(automatic, {starting(0s), running(0s)}) == 60s);
  ProgressReport ending = running(0s);
  ending.ending = true;
  REQUIRE(limit(automatic, {running(0s), ending}) == 300s);
  ending.longest_gap = 200s;
  REQUIRE(limit(automatic, {running(0s), ending}) == 400s);
  REQUIRE(limit(given, {running(0s, 7s, 40s)}) == 20s);
  REQUIRE(limit(given, {starting(0s)}) == 300s);
  REQUIRE(limit(given, {ending}) == 300s);
  REQUIRE(limit(given, {{.silence = 900s}}) == 300s);
  REQUIRE(limit(long_given, {starting(0s)}) == 400s);
  REQUIRE(limit(started, {starting(0s)}) == 40s);
  REQUIRE(limit(started, {ending}) == 40s);
  REQUIRE(limit(automatic, {running(0s, Duration::max(), Duration::min())}) == 10 * duration_max);
}

TEST_CASE("the least silence of all agents decides", "[unit][diagnosis]") {
  Job job;
  REQUIRE(job.tell(a, running(500s), t0).empty());  // the other has told nothing yet
  REQUIRE(job.tell(b, running(500s), t0) == examine(0));
  Job other;
  REQUIRE(other.tell(b, running(1s), t0).empty());
  REQUIRE(other.tell(a, running(500s), t0).empty());
  REQUIRE(other.tell(b, running(60s), t0 + 60s).empty());
  REQUIRE_FALSE(other.watch.deadline());
  REQUIRE(other.tell(b, running(60s + 1ns), t0 + 61s) == examine(0));
  REQUIRE(other.watch.deadline() == t0 + 61s + look_wait_max);
}

TEST_CASE("who is not watched is as silent as he likes", "[unit][diagnosis]") {
  Job job;
  REQUIRE(job.tell(a, {.silence = 9000s}, t0).empty());
  REQUIRE(job.tell(b, {.silence = 9000s}, t0).empty());
  REQUIRE(job.tell(b, starting(300s), t0).empty());
  REQUIRE(job.tell(b, starting(301s), t0) == examine(0));
  Job given{{.timeout = {.mode = HangTimeout::Mode::given, .silence = 20s}}};
  REQUIRE(given.tell(a, {.silence = 301s}, t0).empty());
  REQUIRE(given.tell(b, {.silence = 301s}, t0) == examine(0));
}

TEST_CASE("a look leads to a verdict, and progress ends it", "[unit][diagnosis]") {
  Job job;
  REQUIRE(job.silent(64s, t0 + 64s) == examine(0));
  const auto actions = job.answer_both(0, still(3), t0 + 66s);
  const Found& hang = found(actions);
  REQUIRE(hang.number == 0);
  REQUIRE_FALSE(hang.asked);
  REQUIRE(hang.silence == 64s);
  REQUIRE(hang.verdict->kind == HangKind::stuck);
  REQUIRE(hang.verdict->culprits == list({3}));
  REQUIRE(hang.action == HangAction::none);
  REQUIRE(hang.ended.empty());
  REQUIRE(hang.looks.size() == 4);
  REQUIRE(hang.looks[3].host == "nodeb");
  REQUIRE(hang.looks[3].local_rank == LocalRank{1});
  REQUIRE_FALSE(job.watch.deadline());

  // Silent for 181 s, then a second without a report, in the middle of which it goes on.
  REQUIRE(job.silent(127s, t0 + 127s).empty());
  REQUIRE(job.tell(b, running(128s), t0 + 128s) == examine(1));
  const auto later = job.answer_both(1, still(3), t0 + 130s);
  REQUIRE(found(later).number == 1);
  REQUIRE(job.tell(b, running(181s), t0 + 181s).empty());
  REQUIRE(job.tell(b, running(500ms, 1s, 182s), t0 + 182s + 500ms) == std::vector<Action>{Over{1, 182s}});
  REQUIRE(job.tell(b, running(100ms, 1s, 182s), t0 + 183s).empty());
}

TEST_CASE("who has not answered after 5 s is unknown", "[unit][diagnosis]") {
  Job job;
  REQUIRE(job.silent(64s, t0) == examine(0));
  REQUIRE(job.answer(a, 0, {Job::waiting(0), Job::waiting(1)}, t0 + 1s).empty());
  REQUIRE(job.watch.step(hang::Wake{}, t0 + 5s - 1ns).empty());
  const auto actions = job.watch.step(hang::Wake{}, t0 + 5s);
  REQUIRE(found(actions).verdict->unseen == ranks("2-3"));
  REQUIRE(found(actions).verdict->culprits == list({2, 3}));
  REQUIRE_FALSE(found(actions).looks[3].seen);
  REQUIRE(found(actions).looks[3].host == "nodeb");
  REQUIRE(job.answer(b, 0, {still(2), still(3)}, t0 + 6s).empty());
}

TEST_CASE("who answers late may have looked at another moment", "[unit][diagnosis]") {
  Job job;
  REQUIRE(job.silent(64s, t0) == examine(0));
  REQUIRE(job.answer(a, 0, {Job::waiting(0), Job::waiting(1)}, t0 + 1s).empty());
  const std::vector<RankLook> others{Job::waiting(2), at(still(3), "0", "0-3", 1233)};
  SECTION("not within the limit") {
    const auto actions = job.answer(b, 0, others, t0 + look_answer_limit);
    REQUIRE(found(actions).verdict->culprits == list({3}));
  }
  SECTION("so what happened since is waited for") {
    REQUIRE(job.answer(b, 0, others, t0 + look_answer_limit + 1ns).empty());
    REQUIRE(job.watch.deadline() == t0 + look_wait_max);
    SECTION("progress") {
      REQUIRE(job.tell(a, running(1s), t0 + 4s).empty());
      REQUIRE(job.watch.step(hang::Wake{}, t0 + 5s) == std::vector<Action>{Void{0, "a rank has made progress"}});
    }
    SECTION("or none") { REQUIRE(found(job.watch.step(hang::Wake{}, t0 + 5s)).verdict->culprits == list({3})); }
  }
}

TEST_CASE("answers that nobody asked for, or understands, change nothing", "[unit][diagnosis]") {
  Job job;
  REQUIRE(job.answer(a, 0, {still(0)}, t0).empty());
  REQUIRE(job.silent(64s, t0) == examine(0));
  REQUIRE(job.answer(a, 7, {still(0)}, t0).empty());
  REQUIRE(job.answer(NodeId{"c"}, 0, {still(0)}, t0).empty());
  REQUIRE(job.watch.step(hang::Answered{b, 0, "rubbish", false}, t0).empty());
  // What it says afterwards is not heard, and nobody waits for it.
  REQUIRE(job.answer(b, 0, {still(2), still(3)}, t0).empty());
  const auto actions = job.answer(a, 0, {Job::waiting(0), Job::waiting(1)}, t0);
  REQUIRE(found(actions).verdict->unseen == ranks("2-3"));
}

TEST_CASE("an answer may come in parts", "[unit][diagnosis]") {
  Job job;
  constexpr int many = 128;  // whose looks are two parts, where they are as long as they may be
  REQUIRE(look_parts_max(many - 1) == 1);
  REQUIRE(look_parts_max(many) == 2);
  job.watch.step(hang::AttemptBegins{{{a, "nodea", Rank{0}, 2}, {b, "nodeb", Rank{2}, many}}, 4}, t0);
  REQUIRE(job.silent(64s, t0) == examine(0));
  const auto part = [](const RankLook& look) { return pack_looks(std::vector{look}).front(); };
  REQUIRE(job.answer(a, 0, {Job::waiting(0), Job::waiting(1)}, t0).empty());
  REQUIRE(job.watch.step(hang::Answered{b, 0, part(Job::waiting(2)), false}, t0).empty());
  const auto actions = job.watch.step(hang::Answered{b, 0, part(at(still(3), "0", "0-3", 1)), true}, t0);
  REQUIRE(found(actions).verdict->culprits == list({3}));
}

TEST_CASE("a look is void when there is progress, and the next comes at double the silence", "[unit][diagnosis]") {
  Job job;
  REQUIRE(job.silent(64s, t0) == examine(0));
  SECTION("between its two looks") {
    RankLook on = still(3);
    on.progressed = true;
    REQUIRE(job.answer_both(0, on, t0 + 2s) == std::vector<Action>{Void{0, "a rank has made progress"}});
    REQUIRE(job.silent(127s, t0 + 63s).empty());
    REQUIRE(job.tell(a, running(129s), t0 + 64s).empty());
    REQUIRE(job.tell(b, running(128s), t0 + 64s) == examine(1));
  }
  SECTION("told meanwhile") {
    REQUIRE(job.tell(a, running(1s), t0 + 1s).empty());
    REQUIRE(job.answer_both(0, still(3), t0 + 2s) == std::vector<Action>{Void{0, "a rank has made progress"}});
    // It was the end of that silence: the limit itself counts again.
    REQUIRE(job.tell(b, running(2s), t0 + 3s).empty());
    REQUIRE(job.silent(61s, t0 + 70s) == examine(1));
  }
  SECTION("or when its attempt ends") {
    REQUIRE(job.watch.step(hang::AttemptEnds{}, t0 + 1s) == std::vector<Action>{Void{0, "the attempt has ended"}});
    REQUIRE_FALSE(job.watch.deadline());
    REQUIRE(job.answer(a, 0, {still(0)}, t0 + 2s).empty());
  }
  SECTION("an agent that is gone is not waited for") {
    REQUIRE(job.answer(a, 0, {Job::waiting(0), Job::waiting(1)}, t0 + 1s).empty());
    const auto actions = job.watch.step(hang::Gone{b}, t0 + 1s);
    REQUIRE(found(actions).verdict->unseen == ranks("2-3"));
  }
}

TEST_CASE("busy is told again at doubling distances", "[unit][diagnosis]") {
  Job job;
  std::uint64_t number = 0;
  for (const Duration silence : {61s, 122s, 244s, 488s}) {
    REQUIRE(job.silent(silence - 1s, t0 + silence).empty());
    REQUIRE(job.tell(a, running(silence + 1s), t0 + silence).empty());
    REQUIRE(job.tell(b, running(silence), t0 + silence) == examine(number));
    const auto actions = job.answer_both(number, moving(3), t0 + silence);
    REQUIRE(found(actions).number == number);
    REQUIRE(found(actions).verdict->kind == HangKind::busy);
    ++number;
  }
}

TEST_CASE("a person sees all ranks whenever they ask", "[unit][diagnosis]") {
  Job job{{.timeout = {.mode = HangTimeout::Mode::off}, .on_hang = OnHang::abort}};
  REQUIRE(job.watch.step(hang::Asked{}, t0) == examine(0, true));
  REQUIRE(job.watch.deadline() == t0 + 2s);
  SECTION("what hangs is named, and not touched") {
    const auto actions = job.answer_both(0, still(3), t0 + 1s);
    REQUIRE(found(actions).asked);
    REQUIRE(found(actions).silence == 0s);
    REQUIRE(found(actions).verdict->culprits == list({3}));
    REQUIRE(found(actions).action == HangAction::none);
    REQUIRE(job.tell(b, running(10s), t0 + 2s).empty());
    REQUIRE(job.tell(b, running(1s), t0 + 3s).empty());  // nothing was told that could be over
  }
  SECTION("ranks that get on are shown without a verdict") {
    RankLook on = still(3);
    on.progressed = true;
    const auto actions = job.answer_both(0, on, t0 + 1s);
    REQUIRE_FALSE(found(actions).verdict);
    REQUIRE(found(actions).looks.size() == 4);
  }
  SECTION("who does not answer in 2 s is left out") {
    const auto actions = job.watch.step(hang::Wake{}, t0 + 2s);
    REQUIRE(found(actions).verdict->unseen == ranks("0-3"));
  }
}

TEST_CASE("a person who asks during a look gets that one", "[unit][diagnosis]") {
  Job job;
  REQUIRE(job.silent(64s, t0) == examine(0));
  REQUIRE(job.watch.step(hang::Asked{}, t0 + 1s).empty());
  REQUIRE(job.watch.deadline() == t0 + 3s);
  RankLook rank_3 = still(3);
  SECTION("a hang is told as such") {
    const auto actions = job.answer_both(0, rank_3, t0 + 2s);
    REQUIRE_FALSE(found(actions).asked);
  }
  SECTION("who had no time to answer is not held against the others") {
    REQUIRE(job.answer(a, 0, {Job::waiting(0), Job::waiting(1)}, t0 + 2s).empty());
    const auto actions = job.watch.step(hang::Wake{}, t0 + 3s);
    REQUIRE(actions.size() == 2);
    REQUIRE((std::get<Found>(actions[0]).asked && std::get<Found>(actions[0]).action == HangAction::none));
    REQUIRE(actions[1] == Action{hang::Examine{1, false}});  // the hang has its own
  }
  SECTION("a void one is shown all the same") {
    rank_3.progressed = true;
    const auto actions = job.answer_both(0, rank_3, t0 + 2s);
    REQUIRE(found(actions).asked);
    REQUIRE_FALSE(found(actions).verdict);
  }
}

TEST_CASE("without an attempt nobody is asked, nor in one that is too large", "[unit][diagnosis]") {
  HangWatch watch{{}};
  REQUIRE(watch.step(hang::Asked{}, t0).empty());
  REQUIRE(watch.step(hang::Reported{a, running(1000s)}, t0).empty());
  REQUIRE(watch.step(hang::AttemptBegins{Job::nodes(), looked_ranks_max + 1}, t0).empty());
  REQUIRE(watch.step(hang::Asked{}, t0).empty());
  REQUIRE(watch.step(hang::AttemptBegins{Job::nodes(), looked_ranks_max}, t0).empty());
  REQUIRE(watch.step(hang::Asked{}, t0) == examine(0, true));
}

TEST_CASE("a verdict goes with the looks of its culprits before others", "[unit][diagnosis]") {
  constexpr int world = static_cast<int>(told_looks_max) + 6;
  HangWatch watch{{}};
  REQUIRE(watch.step(hang::AttemptBegins{{{a, "nodea", Rank{0}, world}}, world}, t0).empty());
  REQUIRE(watch.step(hang::Asked{}, t0) == examine(0, true));
  std::vector<RankLook> all;
  const std::string members = "0-" + std::to_string(world - 1);
  for (int rank = 0; rank < world - 1; ++rank) all.push_back(in(still(rank), "0", members, 5));
  all.push_back(at(still(world - 1), "0", members, 4));
  const auto parts = pack_looks(all);
  std::vector<Action> actions;
  for (const std::string& part : parts) {
    actions = watch.step(hang::Answered{a, 0, part, &part == &parts.back()}, t0 + 1s);
  }
  const auto& looks = found(actions).looks;
  REQUIRE(looks.size() == told_looks_max);
  REQUIRE(looks.front().rank == Rank{0});
  REQUIRE(looks.back().rank == Rank{world - 1});
}

TEST_CASE("where no agent is left there is no verdict over nobody", "[unit][diagnosis]") {
  Job job;
  const bool asked = GENERATE(true, false);
  REQUIRE((asked ? job.watch.step(hang::Asked{}, t0) : job.silent(64s, t0)) == examine(0, asked));
  REQUIRE(job.watch.step(hang::Gone{a}, t0 + 1s).empty());
  REQUIRE(job.watch.step(hang::Gone{b}, t0 + 1s) == std::vector<Action>{Void{0, "no agent is left"}});
  REQUIRE_FALSE(job.watch.looking());
  REQUIRE(job.watch.deadline() == std::nullopt);
  REQUIRE(job.watch.step(hang::Wake{}, t0 + 10s).empty());
}
