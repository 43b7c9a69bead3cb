#include "launcher/core/record/time_fold.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <random>

using namespace torchup;
namespace te = time_event;

namespace {

constexpr std::int64_t second = 1'000'000;

/// Events of nodes, by whole seconds of their clocks.
class History {
 public:
  History& at(std::int64_t seconds, te::Body body, const std::string& host = "a") {
    fold.add({host, seconds * second, std::move(body)});
    return *this;
  }
  History& start(int ranks, const std::string& host = "a", std::int64_t seconds = 0) {
    return at(seconds, te::JobStarted{"run", ranks}, host);
  }
  History& round(std::int64_t seconds, std::int64_t number, int restarts, int first_rank = 0,
                 const std::string& host = "a") {
    return at(seconds, te::RoundCompleted{number, first_rank, restarts}, host);
  }
  History& workers(std::int64_t seconds, int count, const std::string& host = "a") {
    for (int i = 0; i < count; ++i) at(seconds, te::WorkerStarted{i}, host);
    return *this;
  }
  History& exit(std::int64_t seconds, int local_rank, bool failed = false, const std::string& host = "a") {
    return at(seconds, te::WorkerExited{local_rank, failed}, host);
  }
  struct Did {
    std::int64_t first, first_at, last, last_at, waited = 0;
  };
  /// An exit of one that has reported steps.
  History& exit(std::int64_t seconds, int local_rank, Did did, bool failed = false, const std::string& host = "a") {
    const te::Steps steps{local_rank,           did.first,          did.last, did.first_at * second,
                          did.last_at * second, did.waited * second};
    return at(seconds, te::WorkerExited{local_rank, failed, steps}, host);
  }
  History& end(std::int64_t ended, std::int64_t job_ended, bool failed = false, const std::string& host = "a") {
    return at(ended, te::AttemptEnded{}, host).at(job_ended, te::JobEnded{failed}, host);
  }

  TimeFold fold;
};

LedgerCounts counted(std::int64_t ranks, std::int64_t seconds, std::int64_t restarts, std::int64_t redone_steps) {
  return {.ranks = ranks,
          .lasted_us = seconds * second,
          .restarts = restarts,
          .changes = 0,
          .redone_steps = redone_steps,
          .hangs = 0};
}

using Parts = std::map<std::string, double>;

/// In seconds, without those that are nothing.
Parts parts(const TimeLedger& ledger) {
  Parts found;
  for (std::size_t i = 0; i < spent_words.size(); ++i) {
    const std::int64_t us = ledger.us(static_cast<Spent>(i));
    if (us != 0) found[std::string{spent_words[i]}] = static_cast<double>(us) / second;
  }
  return found;
}

}  // namespace

TEST_CASE("a failure, with steps that were done again", "[unit][ledger]") {
  History job;
  job.start(2).round(10, 0, 0).workers(11, 2);
  job.exit(65, 1, {1, 22, 9, 62}, true).at(65, te::Stopping{}).exit(66, 0, {1, 20, 9, 60}).at(67, te::AttemptEnded{});
  job.at(67, te::RoundFollows{true}).at(70, te::Waiting{}).at(71, te::Waiting{}).round(72, 1, 1).workers(73, 2);
  job.exit(151, 0, {6, 80, 20, 150}).exit(151, 1, {6, 80, 20, 150}).end(152, 155);
  const TimeLedger ledger = job.fold.ledger();
  CHECK(parts(ledger) == Parts{{"waiting", 20 + 4},
                               {"startup", 10 + 12},
                               {"redone", 40},  // 4 of 8 steps, of 40 s each
                               {"failure", 7 + 5 + 2 * 3 + 2 * 8},
                               {"useful", 40 + 2 * 70},
                               {"shutdown", 2 * 5}});
  CHECK(ledger.rank_us() == 2 * 155 * second);
  CHECK(ledger.basis == LedgerBasis::steps);
  CHECK(job.fold.counts() == counted(2, 155, 1, 4));
}

TEST_CASE("a failure of programs that report no steps", "[unit][ledger]") {
  History job;
  job.start(2).round(10, 0, 0).workers(11, 1).at(13, te::WorkerStarted{1});
  job.exit(50, 0).exit(65, 1, true).at(66, te::Stopping{}).at(67, te::AttemptEnded{});
  job.round(72, 1, 1).workers(73, 2).exit(100, 0, true).at(100, te::Stopping{}).exit(105, 1).end(106, 110, true);
  const TimeLedger ledger = job.fold.ledger();
  CHECK(parts(ledger) == Parts{{"waiting", 20},
                               {"startup", 1 + 3},
                               {"useful", 39 + 52 + 2 * 27},
                               {"failure", 17 + 2 + 2 * 5 + 2 * 1 + 2 * 6 + 2 * 4}});
  CHECK(ledger.rank_us() == 2 * 110 * second);
  CHECK(ledger.basis == LedgerBasis::processes);
}

TEST_CASE("a hang lasts from the last step until somebody says so", "[unit][ledger]") {
  History job;
  job.start(2).round(5, 0, 0).workers(6, 2).at(91, te::HangFound{});  // the job's, a little before the worker's
  job.at(92, te::HangFound{true}).at(93, te::HangFound{true}).at(93, te::HangFound{}).at(94, te::Stopping{});
  job.exit(100, 0, {1, 10, 11, 30}).exit(100, 1, {1, 10, 11, 32}, true).at(101, te::AttemptEnded{});
  job.round(103, 1, 1).workers(104, 2);
  job.exit(150, 0, {12, 110, 20, 150}).exit(150, 1, {12, 110, 20, 150}).end(151, 152);
  const TimeLedger ledger = job.fold.ledger();
  CHECK(parts(ledger) == Parts{{"waiting", 10},
                               {"startup", 10},
                               {"useful", 20 + 22 + 80},
                               {"hang", 62 + 60},
                               {"failure", 2 * 9 + 2 * 2 + 2 * 7},
                               {"shutdown", 4}});
  CHECK(ledger.rank_us() == 2 * 152 * second);
  CHECK(job.fold.counts().hangs == 1);
}

TEST_CASE("a hang of a worker elsewhere is known by the job's", "[unit][ledger]") {
  History job;
  job.start(1).round(0, 0, 0).workers(0, 1).at(50, te::HangFound{}).at(55, te::HangFound{});
  job.exit(90, 0, {1, 10, 9, 40}, true).end(90, 100, true);
  CHECK(parts(job.fold.ledger()) == Parts{{"startup", 10}, {"useful", 30}, {"hang", 10}, {"failure", 50}});
}

TEST_CASE("a hang that was over before the last step is none", "[unit][ledger]") {
  History job;
  job.start(1).round(0, 0, 0).workers(0, 1).at(50, te::HangFound{}).exit(90, 0, {1, 10, 9, 80}).end(90, 100);
  CHECK(parts(job.fold.ledger()) == Parts{{"startup", 10}, {"useful", 70}, {"shutdown", 20}});
  CHECK(job.fold.counts().hangs == 0);
}

TEST_CASE("a change of the members is no failure", "[unit][ledger]") {
  History job;
  job.start(1).round(10, 0, 2).workers(10, 1).at(50, te::RoundFollows{false}).at(50, te::Stopping{});
  job.exit(55, 0, {3, 20, 7, 48}).at(56, te::AttemptEnded{}).round(60, 1, 2).workers(61, 1);
  job.exit(99, 0, {8, 70, 9, 90}, true).end(99, 100, true);
  const TimeLedger ledger = job.fold.ledger();
  CHECK(parts(ledger) ==
        Parts{{"waiting", 10}, {"startup", 10}, {"useful", 28 + 20}, {"change", 8 + 4 + 10}, {"failure", 9 + 1}});
  CHECK(ledger.rank_us() == 100 * second);
  CHECK(job.fold.counts().changes == 1);
  CHECK(job.fold.counts().restarts == 0);
}

TEST_CASE("a rank that did not start counts as starting until the attempt ends", "[unit][ledger]") {
  History job;
  job.start(2).round(10, 0, 0).workers(11, 1).at(12, te::Stopping{}).exit(13, 0).at(14, te::AttemptEnded{});
  job.round(20, 1, 1).workers(21, 1).at(25, te::Stopping{}).exit(25, 0).end(30, 30, true);
  CHECK(parts(job.fold.ledger()) ==
        Parts{{"waiting", 20}, {"startup", 1 + 4}, {"useful", 1 + 4}, {"failure", 2 + 12 + 1 + 10 + 5}});
  CHECK(job.fold.ledger().rank_us() == 60 * second);
}

TEST_CASE("a job without a round has waited", "[unit][ledger]") {
  History job;
  job.start(8).at(1, te::Waiting{}).at(100, te::JobEnded{true});
  CHECK(parts(job.fold.ledger()) == Parts{{"waiting", 800}});
  CHECK(job.fold.ledger().basis == LedgerBasis::processes);
  CHECK(parts(TimeFold{}.ledger()).empty());
}

TEST_CASE("a job that runs is as if it ended now", "[unit][ledger]") {
  History job;
  job.start(2).round(10, 0, 0).workers(12, 2);
  CHECK(parts(job.fold.ledger(20 * second)) == Parts{{"waiting", 20}, {"startup", 4}, {"useful", 16}});
  CHECK(parts(job.fold.ledger()) == Parts{{"waiting", 20}, {"startup", 4}});
  job.at(40, te::Progress{{{0, 1, 5, 15 * second, 39 * second, 0}, {1, 1, 5, 17 * second, 39 * second, 0}}});
  CHECK(parts(job.fold.ledger(50 * second)) == Parts{{"waiting", 20}, {"startup", 5 + 7}, {"useful", 35 + 33}});
  job.exit(60, 0, {1, 15, 6, 44}, true).at(60, te::Stopping{});
  CHECK(parts(job.fold.ledger(70 * second)) ==
        Parts{{"waiting", 20}, {"startup", 12}, {"useful", 29 + 22}, {"failure", 26 + 31}});
  job.exit(71, 1).at(72, te::AttemptEnded{}).at(72, te::RoundFollows{true});
  CHECK(parts(job.fold.ledger(80 * second)).at("failure") == 36 + 41);
  job.at(81, te::Waiting{});
  CHECK(parts(job.fold.ledger(90 * second)).at("failure") == 37 + 42);
  CHECK(parts(job.fold.ledger(90 * second)).at("waiting") == 20 + 18);
  CHECK(job.fold.ledger(90 * second).rank_us() == 180 * second);
  CHECK(job.fold.ledger(5 * second).rank_us() == 162 * second);  // a time before the newest event
}

TEST_CASE("ranks wait for the slowest", "[unit][ledger]") {
  const auto again = GENERATE(false, true);
  History job;
  job.start(2).round(0, 0, 0).workers(0, 2);
  job.exit(50, 0, {0, 10, 8, 50, 10}).exit(50, 1, {0, 10, 8, 50, 2}).at(50, te::AttemptEnded{});
  job.round(50, 1, 1).workers(50, 2);
  const std::int64_t first = again ? 5 : 9;
  job.exit(60, 0, {first, 50, first + 1, 60}).exit(60, 1, {first, 50, first + 1, 60}).end(60, 60);
  const double redone = again ? 40 : 0;
  const double straggler = again ? 4 : 8;
  Parts expected{{"startup", 20}, {"useful", 80 + 20 - redone - straggler}, {"straggler", straggler}};
  if (again) expected["redone"] = redone;
  CHECK(parts(job.fold.ledger()) == expected);
}

TEST_CASE("more waiting than running is no more than running", "[unit][ledger]") {
  History job;
  job.start(2).round(0, 0, 0).workers(0, 2).exit(20, 0, {0, 10, 8, 20, 1000}).exit(20, 1, {0, 10, 8, 20}).end(20, 20);
  CHECK(parts(job.fold.ledger()) == Parts{{"startup", 20}, {"straggler", 20}});
}

TEST_CASE("the ranks of a round on several nodes are one world", "[unit][ledger]") {
  History job;
  job.start(1).start(1, "b", 1000);
  job.round(10, 0, 0).round(1020, 0, 0, 1, "b").workers(10, 1).workers(1020, 1, "b");
  job.exit(60, 0, {0, 20, 8, 60, 10}).exit(1070, 0, {0, 1030, 8, 1070, 2}, false, "b");
  job.at(60, te::AttemptEnded{}).at(1070, te::AttemptEnded{}, "b");
  job.round(60, 1, 1).workers(60, 1).exit(70, 0, {5, 60, 6, 70}).end(70, 70);
  job.at(1080, te::JobEnded{true}, "b");
  // Node b has no second attempt, and yet its steps were done again.
  CHECK(parts(job.fold.ledger()) == Parts{{"waiting", 10 + 20},
                                          {"startup", 10 + 10},
                                          {"redone", 20 + 20},
                                          {"straggler", 4},
                                          {"useful", 80 - 40 - 4 + 10},
                                          {"failure", 10}});
  CHECK(job.fold.ledger().rank_us() == (70 + 80) * second);
  CHECK(job.fold.counts() == counted(2, 80, 1, 4));
}

TEST_CASE("steps of some ranks are a mixed basis", "[unit][ledger]") {
  History job;
  job.start(2).round(0, 0, 0).workers(5, 2).exit(20, 0, {0, 10, 8, 20}).exit(20, 1).end(20, 20);
  CHECK(job.fold.ledger().basis == LedgerBasis::mixed);
  CHECK(parts(job.fold.ledger()) == Parts{{"startup", 15}, {"useful", 25}});
}

TEST_CASE("a second job in the same file is the one that counts", "[unit][ledger]") {
  History job;
  job.start(1).round(0, 0, 0).workers(0, 1).exit(10, 0).end(10, 10);
  job.start(2, "a", 100).round(110, 0, 0).workers(110, 2).exit(120, 0).exit(120, 1).end(120, 120);
  CHECK(parts(job.fold.ledger()) == Parts{{"waiting", 20}, {"useful", 20}});
  SECTION("one that was killed belongs to a job of another name") {
    job.at(200, te::JobStarted{"run 2", 1}).at(205, te::Waiting{});
    job.at(300, te::JobStarted{"run 3", 1}).at(307, te::Waiting{});
    CHECK(parts(job.fold.ledger()) == Parts{{"waiting", 7}});
  }
  SECTION("an agent that was killed and came back is of the same job") {
    job.at(200, te::JobStarted{"run 2", 1}).at(205, te::Waiting{});
    job.at(300, te::JobStarted{"run 2", 1}).at(307, te::Waiting{});
    CHECK(parts(job.fold.ledger()) == Parts{{"waiting", 5 + 7}});
  }
}

TEST_CASE("a launcher that was killed and came back has its ranks once, and its steps were done again",
          "[unit][ledger]") {
  History job;
  job.start(2).round(10, 0, 0).workers(11, 2).at(
      60, te::Progress{{{0, 1, 11, 20 * second, 60 * second, 0}, {1, 1, 11, 20 * second, 60 * second, 0}}});
  job.start(2, "a", 100);
  SECTION("its rounds are counted from 0 again") { job.round(110, 0, 0); }
  SECTION("its rounds go on") { job.round(110, 1, 0); }
  job.workers(111, 2).exit(160, 0, {6, 120, 16, 160}).exit(160, 1, {6, 120, 16, 160}).end(160, 160);
  CHECK(parts(job.fold.ledger()) ==
        Parts{{"waiting", 20 + 20}, {"startup", 20 + 20}, {"redone", 48}, {"useful", 2 * 40 - 48 + 2 * 40}});
  CHECK(job.fold.counts() == counted(2, 60 + 60, 0, 6));
}

TEST_CASE("a long life costs no more memory, and loses no second", "[unit][ledger]") {
  History job;
  job.start(1);
  const int rounds = 3 * static_cast<int>(TimeFold::attempts_kept_max);
  for (int i = 0; i < rounds; ++i) {
    const int t = 10 * (i + 1);
    job.round(t, i, i).workers(t + 1, 1).at(t + 5, te::Stopping{}).exit(t + 5, 0, true).at(t + 7, te::AttemptEnded{});
  }
  job.at(10 * (rounds + 1), te::JobEnded{true});
  CHECK(parts(job.fold.ledger()) ==
        Parts{{"waiting", 10}, {"startup", 1}, {"useful", 4 * rounds}, {"failure", 6 * rounds - 1}});
  CHECK(job.fold.counts().restarts == rounds - 1);
}

TEST_CASE("of hosts that are told of one after the other no round is settled before all are known", "[unit][ledger]") {
  History job;
  job.fold = TimeFold{SIZE_MAX};
  const int rounds = static_cast<int>(TimeFold::attempts_kept_max) + 6;
  for (const char* host : {"a", "b"}) {
    job.start(1, host);
    for (int i = 0; i < rounds; ++i) {
      const int t = 10 * i, step = 8 * i, waited = *host == 'a' ? 2 : 0;
      job.round(t, i, i, *host - 'a', host).workers(t, 1, host);
      job.exit(t + 8, 0, {step + 1, t, step + 8, t + 8, waited}, true, host).at(t + 8, te::AttemptEnded{}, host);
    }
    job.at(10 * rounds, te::JobEnded{true}, host);
  }
  CHECK(parts(job.fold.ledger()) == Parts{{"straggler", 2 * rounds}, {"useful", 14 * rounds}, {"failure", 4 * rounds}});
}

TEST_CASE("steps that were done again in a long life stay so", "[unit][ledger]") {
  History job;
  job.start(1);
  const int rounds = static_cast<int>(TimeFold::attempts_kept_max) + 5;
  for (int i = 0; i < rounds; ++i) {
    const int t = 10 * i;
    job.round(t, i, i).workers(t, 1).exit(t + 10, 0, {1, t, 5, t + 10}).at(t + 10, te::AttemptEnded{});
  }
  job.at(10 * rounds, te::JobEnded{false});
  CHECK(parts(job.fold.ledger()) == Parts{{"redone", 10 * (rounds - 1)}, {"useful", 10}});
  CHECK(job.fold.counts().redone_steps == 4 * (rounds - 1));
}

namespace {

/// Whatever can stand in a file, in any order.
class RandomEvents {
 public:
  explicit RandomEvents(unsigned seed) : random_{seed} {}

  TimeEvent next() {
    clock_ += chance(20) ? any() : below(5 * second);
    TimeEvent event{chance(4) ? "b" : "a", clock_, body()};
    if (clock_ < 0) clock_ = 0;
    return event;
  }

 private:
  bool chance(std::int64_t one_in) { return below(one_in) == 0; }
  std::int64_t below(std::int64_t limit) { return std::uniform_int_distribution<std::int64_t>{0, limit - 1}(random_); }
  std::int64_t any() {
    return std::uniform_int_distribution<std::int64_t>{std::numeric_limits<std::int64_t>::min() / 2,
                                                       std::numeric_limits<std::int64_t>::max() / 2}(random_);
  }
  int small() { return static_cast<int>(below(4)); }
  te::Steps steps() {
    if (chance(8)) return {small(), any(), any(), any(), any(), any()};
    const std::int64_t first = below(20), begin = clock_ - below(20 * second);
    return {small(), first, first + below(9), begin, begin + below(20 * second), below(9 * second)};
  }
  te::Body body() {
    switch (below(12)) {
      case 0:
        return chance(6) ? te::Body{te::JobStarted{chance(9) ? "other" : "run", 1 + small()}} : te::Waiting{};
      case 1:
        return chance(10) ? te::Body{te::JobEnded{chance(2)}} : te::Waiting{};
      case 2:
      case 3:
        return te::RoundCompleted{chance(5) ? any() : below(9), small(), small()};
      case 4:
      case 5:
        return te::WorkerStarted{small()};
      case 6:
      case 7:
        return te::WorkerExited{small() - 1, chance(2), chance(3) ? std::nullopt : std::optional{steps()}};
      case 8:
        return te::Progress{{steps(), steps()}};
      case 9:
        return chance(2) ? te::Body{te::HangFound{chance(2)}} : te::RoundFollows{chance(2)};
      case 10:
        return te::Stopping{};
      default:
        return te::AttemptEnded{};
    }
  }

  std::mt19937 random_;
  std::int64_t clock_ = 0;
};

/// What the parts must sum to: ranks times lives, counted apart.
class Lives {
 public:
  void add(const TimeEvent& event) {
    auto& lives = of_[event.host];
    if (const auto* started = std::get_if<te::JobStarted>(&event.body)) {
      if (!lives.empty() && lives.back().ended) lives.clear();
      run_ = started->run_id;
      const std::int64_t at = std::clamp<std::int64_t>(
          event.monotonic_us, 0,
          std::numeric_limits<std::int64_t>::max() - duration_max / std::chrono::microseconds{1});
      lives.push_back({run_, started->local_world_size, at, at});
      return;
    }
    if (lives.empty() || lives.back().ended) return;
    Life& life = lives.back();
    const std::int64_t last = life.begin + duration_max / std::chrono::microseconds{1};
    life.end = std::clamp(event.monotonic_us, life.end, last);
    life.ended = std::holds_alternative<te::JobEnded>(event.body);
  }
  [[nodiscard]] std::int64_t rank_us() const {
    std::int64_t sum = 0;
    for (const auto& [host, lives] : of_)
      for (const Life& life : lives)
        if (life.run == run_) sum += life.ranks * (life.end - life.begin);
    return sum;
  }

 private:
  struct Life {
    std::string run;
    std::int64_t ranks, begin, end;
    bool ended = false;
  };
  std::map<std::string, std::vector<Life>> of_;
  std::string run_;
};

}  // namespace

TEST_CASE("whatever happens, the parts sum to the ranks' time", "[unit][ledger][many]") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    RandomEvents events{seed};
    TimeFold fold;
    Lives lives;
    for (int i = 0; i < 200; ++i) {
      const TimeEvent event = events.next();
      fold.add(event);
      lives.add(event);
    }
    const TimeLedger ledger = fold.ledger();
    CAPTURE(seed);
    REQUIRE(ledger.rank_us() == lives.rank_us());
    for (std::size_t i = 0; i < spent_words.size(); ++i) REQUIRE(ledger.us(static_cast<Spent>(i)) >= 0);
  }
}
