#include "rendezvous/core/diagnosis/progress_tally.hpp"

#include <catch2/catch.hpp>
#include <random>

#include "rendezvous/core/link/messages.hpp"

using namespace torchup;
using namespace std::chrono_literals;

TEST_CASE("what was taken back leaves no trace, in whatever order it came", "[unit][diagnosis]") {
  using Mode = HangTimeout::Mode;
  const HangTimeout automatic{}, given{.mode = Mode::given, .silence = 20s};
  std::mt19937 random{5};
  const auto any = [&](int most) { return std::chrono::seconds{random() % static_cast<unsigned>(most)}; };
  const auto any_report = [&]() -> ProgressReport {
    return {.watched = random() % 2 == 0,
            .progressed = random() % 2 == 0,
            .ending = random() % 8 == 0,
            .silence = any(200),
            .median_gap = any(20),
            .longest_gap = any(200)};
  };
  ProgressTally tally;
  std::vector<ProgressReport> there;
  for (int step = 0; step < 2000; ++step) {
    if (there.size() < 8 && (there.empty() || random() % 2 == 0)) {
      there.push_back(any_report());
      tally.add(there.back());
    } else {
      const auto which = there.begin() + static_cast<std::ptrdiff_t>(random() % there.size());
      tally.remove(*which);
      there.erase(which);
    }
    ProgressTally anew;
    for (const ProgressReport& report : there) anew.add(report);
    for (const HangTimeout& timeout : {automatic, given}) {
      REQUIRE(tally.limit(timeout) == anew.limit(timeout));
      REQUIRE(tally.least_silence(timeout) == anew.least_silence(timeout));
    }
    REQUIRE(tally.watched() == std::ranges::any_of(there, &ProgressReport::watched));
  }
}

TEST_CASE("silence is the least of those that count", "[unit][diagnosis]") {
  const HangTimeout automatic{}, given{.mode = HangTimeout::Mode::given, .silence = 20s};
  ProgressTally tally;
  REQUIRE(tally.least_silence(automatic) == 0s);
  tally.add({.watched = false, .silence = 3s});
  REQUIRE(tally.least_silence(automatic) == 0s);
  REQUIRE(tally.least_silence(given) == 3s);
  tally.add({.watched = true, .silence = 70s});
  tally.add({.watched = true, .silence = 64s});
  REQUIRE(tally.least_silence(automatic) == 64s);
  REQUIRE(tally.least_silence(given) == 64s);
}

TEST_CASE("what a stranger tells of times is bent, not counted with", "[unit][diagnosis]") {
  ProgressTally tally;
  tally.add({.watched = true, .progressed = true, .silence = -1h, .median_gap = Duration::max(), .longest_gap = -1h});
  REQUIRE(tally.least_silence({}) == 0s);
  REQUIRE(tally.limit({}) == hang_median_factor * duration_max);
}
