#include "launcher/core/rehearsal/rehearsal_report.hpp"

#include <catch2/catch.hpp>

using namespace torchup;
using namespace std::chrono_literals;
using What = RehearsalReport::What;

namespace {

const RehearsedFault known{"kill rank=2 (random)", 5s, false, 100ms, 2s, 8, 3, 1};
const RehearsedFault unknown{"cut node=0 for=1s", 7s, true, {}, {}, {}, 0, 0};

RehearsalReport away() {
  RehearsalReport report;
  report.what = What::away;
  report.restart = {TimePoint{1000s}, GroupRank{1}, 3, 41};
  report.back = 1500ms;
  report.faults = {known, unknown};
  return report;
}

Result<std::optional<RehearsalReport>> take(std::string text) { return take_rehearsal_report(text); }

}  // namespace

TEST_CASE("a report is read as it was told", "[unit][rehearsal]") {
  RehearsalReport ended;
  ended.what = What::ended;
  ended.job = {143, 2, 8};
  RehearsalReport for_good = away();
  for_good.back.reset();
  RehearsalReport stopped;
  stopped.what = What::stopped;
  stopped.lasts = std::chrono::minutes{60};
  RehearsalReport waiting;
  waiting.what = What::waiting;
  const auto all = {RehearsalReport{}, away(), for_good, ended, stopped, waiting};
  std::string input;
  for (const auto& report : all) input += encode(report);
  for (const auto& report : all) {
    const auto taken = take_rehearsal_report(input);
    REQUIRE(taken.has_value());
    REQUIRE(*taken == report);
  }
  REQUIRE(input.empty());
}

TEST_CASE("a report that is not whole yet is waited for", "[unit][rehearsal]") {
  const std::string whole = encode(away());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    std::string part = whole.substr(0, length);
    const auto taken = take_rehearsal_report(part);
    REQUIRE(taken.has_value());
    REQUIRE(!taken->has_value());
    REQUIRE(part.size() == length);
  }
}

TEST_CASE("what is no report is refused", "[unit][rehearsal]") {
  for (const char* text : {"gone\nend\n", "placed 1\nend\n", "away - 1 2 3\nend\n", "away - 1 0 0 0\nend\n",
                           "ended 256 0 0\nend\n", "ended 0 -1 0\nend\n", "placed\nfault 1\nend\n",
                           "placed\nfault 256 0 0 0 - - - x\nend\n", "placed\nfault 0 0 -1 0 - - - x\nend\n"}) {
    CAPTURE(text);
    CHECK(!take(text));
  }
}

TEST_CASE("a report has at most 1 MiB and as many faults as a rehearsal", "[unit][rehearsal]") {
  REQUIRE(take(std::string(rehearsal_report_bytes_max, 'x')).has_value());
  REQUIRE(!take(std::string(rehearsal_report_bytes_max + 1, 'x')));
  RehearsalReport many;
  many.faults.assign(rehearsal_faults_max, known);
  REQUIRE(encode(many).size() <= rehearsal_report_bytes_max);
  REQUIRE(take(encode(many)).has_value());
  many.faults.push_back(known);
  REQUIRE(!take(encode(many)));
}

TEST_CASE("an agent knows which node it is", "[unit][rehearsal]") {
  const RehearsedNode first{0, 2, Port{20000}, {}};
  const RehearsedNode again{1, 64, Port{65535}, RehearsalStart{TimePoint{5s}, GroupRank{2}, 64, -1}};
  for (const RehearsedNode& node : {first, again}) REQUIRE(*parse_rehearsed_node(to_text(node)) == node);
  for (const char* text : {"", "0", "0 1", "0 1 0", "1 1 20000", "0 65 20000", "0 1 65536", "0 1 20000 1 2 3",
                           "0 1 20000 1 0 1 0 0", "-1 1 20000", "a b c"}) {
    CAPTURE(text);
    CHECK(!parse_rehearsed_node(text));
  }
}

TEST_CASE("faults of many nodes are noticed by the first, and over when all go on", "[unit][rehearsal]") {
  GatheredFaults gathered;
  gathered.add({{"kill rank=1", 5s, false, 300ms, 2s, 3, 1, 0}, {"cut node=0 for=1s", 1s, false, {}, 1s, {}, 0, 0}},
               true);
  gathered.add({{"kill rank=1", 5100ms, false, 100ms, 4s, 1, 1, 0}}, true);
  REQUIRE(gathered.all() == std::vector<RehearsedFault>{{"cut node=0 for=1s", 1s, false, {}, 1s, {}, 0, 0},
                                                        {"kill rank=1", 5s, false, 200ms, 4100ms, 3, 1, 0}});
  SECTION("a node that a fault has ended says nothing of what it did not see") {
    gathered.add({{"kill rank=1", 5s, false, {}, {}, {}, 1, 0}}, false);
    REQUIRE(gathered.all().at(1).going_on_after == 4100ms);
  }
  SECTION("one that came to it much later says when that was") {
    gathered.add({{"kill rank=1", 9s, false, {}, 200ms, {}, 1, 0}}, true);
    REQUIRE(gathered.all().at(1).going_on_after == 4200ms);
    REQUIRE(gathered.all().at(1).noticed_after == 200ms);
  }
  SECTION("one that has seen the end does") {
    gathered.add({{"kill rank=1", 5s, false, {}, {}, {}, 1, 0}}, true);
    REQUIRE(!gathered.all().at(1).going_on_after);
  }
  SECTION("it has no target where one node finds none") {
    gathered.add({{"kill rank=1", 5s, true, {}, {}, {}, 1, 0}}, true);
    REQUIRE(gathered.all().at(1).missing);
    REQUIRE(gathered.all().at(1).going_on_after == 4100ms);
  }
}

TEST_CASE("gathered faults are no more than those of one rehearsal", "[unit][rehearsal]") {
  GatheredFaults gathered;
  for (int turn = 0; turn <= static_cast<int>(rehearsal_faults_max); ++turn)
    gathered.add({{"kill rank=1", 5s, false, {}, {}, {}, 0, turn}}, true);
  REQUIRE(gathered.all().size() == rehearsal_faults_max);
}
