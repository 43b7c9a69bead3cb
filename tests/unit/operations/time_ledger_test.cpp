#include "rendezvous/core/ops/time_ledger.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

using namespace torchup;

namespace {

constexpr std::int64_t hour = 3'600'000'000;

TimeLedger of(std::initializer_list<std::pair<Spent, std::int64_t>> parts) {
  TimeLedger ledger;
  for (const auto& [part, us] : parts) ledger.add(part, us);
  return ledger;
}

}  // namespace

TEST_CASE("a ledger's parts sum to all of it", "[unit][ledger]") {
  TimeLedger ledger = of({{Spent::useful, 70}, {Spent::waiting, 10}, {Spent::failure, 20}, {Spent::change, -5}});
  CHECK(ledger.rank_us() == 100);
  CHECK(ledger.us(Spent::change) == 0);
  ledger.move(Spent::useful, Spent::redone, 30);
  CHECK((ledger.us(Spent::useful) == 40 && ledger.us(Spent::redone) == 30));
  ledger.move(Spent::useful, Spent::straggler, 41);
  CHECK((ledger.us(Spent::useful) == 0 && ledger.us(Spent::straggler) == 40));
  ledger.move(Spent::redone, Spent::useful, -1);
  CHECK((ledger.us(Spent::redone) == 30 && ledger.rank_us() == 100));
}

TEST_CASE("a ledger of more time than there is stays a sum", "[unit][ledger]") {
  TimeLedger ledger;
  for (std::size_t i = 0; i < spent_words.size(); ++i) {
    ledger.add(static_cast<Spent>(i), std::numeric_limits<std::int64_t>::max());
  }
  CHECK(ledger.rank_us() == 9 * TimeLedger::part_max_us);
  ledger += ledger;
  ledger.move(Spent::useful, Spent::redone, 7);
  CHECK(ledger.rank_us() == 9 * TimeLedger::part_max_us);
}

TEST_CASE("the ledger of two parts of a job is their sum", "[unit][ledger]") {
  TimeLedger left = of({{Spent::useful, 70}, {Spent::hang, 1}});
  TimeLedger right = of({{Spent::useful, 5}, {Spent::shutdown, 2}});
  right.basis = LedgerBasis::steps;
  TimeLedger none;
  none += right;
  CHECK(none == right);
  none += TimeLedger{};
  CHECK(none == right);
  left += right;
  CHECK(left.basis == LedgerBasis::mixed);
  CHECK((left.us(Spent::useful) == 75 && left.us(Spent::hang) == 1 && left.us(Spent::shutdown) == 2));
  CHECK(of({{Spent::useful, 1'999}, {Spent::shutdown, 5'000}}).spent() == SpentTime{1, 0, 0, 0, 0, 0, 0, 0, 5});
}

TEST_CASE("a ledger as JSON", "[unit][ledger]") {
  TimeLedger ledger = of({{Spent::useful, 12'000'000}, {Spent::waiting, 500'001}, {Spent::straggler, 9}});
  ledger.basis = LedgerBasis::steps;
  CHECK(ledger_json(ledger) ==
        R"({"rank_seconds":12.500010,"useful":12.000000,"waiting":0.500001,"startup":0.000000,"failure":0.000000,)"
        R"("change":0.000000,"redone":0.000000,"hang":0.000000,"straggler":0.000009,"shutdown":0.000000,)"
        R"("basis":"steps"})");
  CHECK(nlohmann::json::parse(ledger_json(ledger)).at("rank_seconds") == 12.50001);
}

TEST_CASE("people read the head, the four largest losses and the rest", "[unit][ledger]") {
  TimeLedger ledger = of({{Spent::useful, 1753 * hour / 100},
                          {Spent::failure, 79 * hour / 100},
                          {Spent::redone, 38 * hour / 100},
                          {Spent::startup, 30 * hour / 100},
                          {Spent::waiting, 10 * hour / 100},
                          {Spent::shutdown, 9 * hour / 100},
                          {Spent::straggler, hour / 100}});
  ledger.basis = LedgerBasis::steps;
  LedgerCounts counts{.ranks = 16, .lasted_us = 4323'000'000, .restarts = 2, .redone_steps = 1'212};
  CHECK(ledger_lines(ledger, counts) == std::vector<std::string>{
                                            "16 ranks x 1:12:03 = 19.2 rank hours, 91.3 % useful",
                                            "  failures    4.1 %   0.79 h   2 restarts: detection, stop, new start",
                                            "  redone      2.0 %   0.38 h   1,212 steps since the last checkpoints",
                                            "  start-up    1.6 %   0.30 h   until the first steps",
                                            "  waiting     0.5 %   0.10 h   for nodes",
                                            "  others      0.5 %   0.10 h   shutdown, slow ranks",
                                        });
}

TEST_CASE("what was not counted is not spoken of", "[unit][ledger]") {
  TimeLedger ledger = of({{Spent::useful, 50'000'000},
                          {Spent::redone, 4'000'000},
                          {Spent::failure, 3'000'000},
                          {Spent::change, 2'000'000},
                          {Spent::hang, 1'000'000}});
  CHECK(ledger_lines(ledger, {.lasted_us = 60'000'000}) ==
        std::vector<std::string>{
            "1.0 rank minutes in 0:01:00, 83.3 % useful",
            "  redone      6.7 %   0.07 min   steps since the last checkpoints",
            "  failures    5.0 %   0.05 min   detection, stop, new start",
            "  changes     3.3 %   0.03 min   of the nodes: stop, new start",
            "  hangs       1.7 %   0.02 min   until it was found",
        });
}

TEST_CASE("a short job without losses is a line", "[unit][ledger]") {
  CHECK(ledger_lines(of({{Spent::useful, 90'000'000}}), {.ranks = 1, .lasted_us = 90'000'000}) ==
        std::vector<std::string>{"1 rank x 0:01:30 = 1.5 rank minutes, 100.0 % useful"});
  CHECK(ledger_lines({}, {.ranks = 0}) ==
        std::vector<std::string>{"0 ranks x 0:00:00 = 0.0 rank seconds, 0.0 % useful"});
}
