#include "rendezvous/core/diagnosis/lateness_nodes.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <set>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

constexpr std::int64_t ms = 1'000'000;
const std::vector<std::string> shared{"0"};

/// What a node with these numbers has seen, each 100 ms after the one before it, so much too late.
LatestArrivals latest(std::int64_t first, std::int64_t count, std::int64_t late_ns, std::int64_t every = 1) {
  LatestArrivals one{.signature = {"0", "gloo:all_reduce", 64}, .dtype = "Float", .period = 100ms * every};
  for (std::int64_t n = first; n < first + count * every; n += every)
    one.numbers.push_back({n, 100 * n * ms + late_ns});
  return one;
}

std::vector<LatestArrivals> told(const LatestArrivals& one) {
  LatenessWindow window;
  window.signatures.push_back(one);
  return told_arrivals(window, {}, shared);
}

NodeWindow node(const std::string& name, std::int64_t late_ns, Duration error = 0ms) {
  return {.node = NodeId{name}, .host = name, .clock_error = error, .told = told(latest(1000, 256, late_ns))};
}

/// As the first window of an attempt.
WindowFindings judge_first(std::span<const NodeWindow> nodes) {
  ComparedNumbers compared;
  return judge_window(nodes, compared);
}

Lateness late_rank(int rank, std::string group = "0") {
  Lateness one{.signature = {std::move(group), "gloo:all_reduce", 64}, .rank = Rank{rank}, .count = 200, .last = 200};
  one.late = 29ms;
  one.period = 100ms;
  return one;
}

}  // namespace

TEST_CASE("the offset of a clock is that of the fastest of the newest 64 round trips", "[unit][lateness]") {
  ClockOffset clock;
  REQUIRE_FALSE(clock.estimate());
  clock.add(10s, 500s, 10s + 4ms);
  REQUIRE(clock.estimate()->offset == 490s - 2ms);
  REQUIRE(clock.estimate()->error == 2ms);
  clock.add(20s, 511s, 20s + 2ms);
  for (int i = 0; i < 63; ++i) clock.add(30s, 520s, 30s + 8ms);
  REQUIRE(clock.estimate() == ClockOffset::Estimate{491s - 1ms, 1ms});  // the first is gone, the second is the 64th
  clock.add(30s, 520s, 30s + 8ms);
  REQUIRE(clock.estimate() == ClockOffset::Estimate{490s - 4ms, 4ms});
  clock.add(30s, 520s, 29s);
  REQUIRE(clock.estimate()->error == 4ms);
}

TEST_CASE("agents tell the same numbers, on the coordinator's clock", "[unit][lateness]") {
  for (const std::int64_t count : {20, 32, 33, 64, 100, 129, 256}) {
    LatenessWindow window;
    window.signatures = {latest(1000, count, 0)};
    const auto one = told_arrivals(window, {.offset = 5ms, .error = 0ms}, shared).at(0).numbers;
    CHECK(one.size() == static_cast<std::size_t>(std::min<std::int64_t>(count, 32)));
    CHECK(std::ranges::is_sorted(one, {}, &LatestArrivals::Number::number));
    CHECK(one.front().latest_ns == 100 * one.front().number * ms + 5 * ms);
    const auto other = told(latest(1003, count + 5, 0)).at(0).numbers;  // what another one saw a moment later
    std::set<std::int64_t> numbers;
    for (const auto& [number, _] : one) numbers.insert(number);
    std::size_t both = 0;
    for (const auto& [number, _] : other) both += numbers.count(number);
    CAPTURE(count);
    CHECK(both + 8 >= one.size());
  }
}

TEST_CASE("numbers are told whatever place they have in a step", "[unit][lateness]") {
  // Every second collective is one at which nobody waits: it must not be all that is told.
  for (const std::uint64_t every : {2U, 4U, 8U, 16U}) {
    std::set<std::uint64_t> places;
    const auto all = told(latest(1000, 256, 0));
    for (const auto& [number, _] : all.at(0).numbers) places.insert(static_cast<std::uint64_t>(number) % every);
    CHECK(2 * places.size() >= every);
  }
}

TEST_CASE("told are groups with members elsewhere, 64 signatures at most, the largest first", "[unit][lateness]") {
  LatenessWindow window;
  for (int i = 0; i < 70; ++i) window.signatures.push_back(latest(0, 20, 0));
  for (int i = 0; i < 70; ++i) window.signatures[static_cast<std::size_t>(i)].signature.elements = i;
  window.signatures[69].signature.group = "own";
  const auto all = told_arrivals(window, {}, shared);
  REQUIRE(all.size() == told_signatures_max);
  REQUIRE(all.front().signature.elements == 68);
  REQUIRE(all.back().signature.elements == 5);
}

TEST_CASE("a late node is found, and its late rank if it has one", "[unit][lateness]") {
  std::vector<NodeWindow> nodes{node("a", 0), node("b", 30 * ms), node("c", 1 * ms)};
  auto findings = judge_first(nodes);
  REQUIRE(findings.straggler);
  CHECK(findings.straggler->node == NodeId{"b"});
  CHECK_FALSE(findings.straggler->lateness.rank);
  CHECK(findings.straggler->lateness.late == 29500us);
  CHECK(findings.straggler->lateness.period == 100ms);

  nodes[1].told[0].only_rank = Rank{1};
  CHECK(judge_first(nodes).straggler->lateness.rank == Rank{1});
  nodes[1].worst = late_rank(3);
  nodes[2].worst = late_rank(5);
  findings = judge_first(nodes);
  CHECK(findings.straggler->host == "b");
  CHECK(findings.straggler->lateness == late_rank(3));
  nodes[1].worst->last = 100;
  CHECK(judge_first(nodes).straggler->lateness.rank == Rank{1});
}

TEST_CASE("lateness below twice the error of the clocks does not count", "[unit][lateness]") {
  CHECK(judge_first(std::vector{node("a", 0), node("b", 30 * ms, 15ms)}).straggler);
  CHECK_FALSE(judge_first(std::vector{node("a", 0), node("b", 30 * ms, 15ms + 1ns)}).straggler);
  CHECK_FALSE(judge_first(std::vector{node("a", 0, 15ms + 1ns), node("b", 30 * ms)}).straggler);
  // One bad line does not blind the others, and hides nobody behind it.
  CHECK(judge_first(std::vector{node("a", 0), node("b", 30 * ms), node("c", 0, 1s), node("d", 0)}).straggler);
  const auto findings =
      judge_first(std::vector{node("a", 0), node("b", 30 * ms), node("c", 90 * ms, 1s), node("d", 0)});
  CHECK_FALSE((findings.straggler && findings.straggler->host == "c"));
  CHECK(findings.measured);
}

TEST_CASE("a rank that is late among its neighbours alone keeps nobody of other nodes waiting", "[unit][lateness]") {
  std::vector<NodeWindow> nodes{node("a", 0), node("b", 0)};
  nodes[0].worst = late_rank(1);
  CHECK_FALSE(judge_first(nodes).straggler);
  nodes[0].worst = late_rank(1, "of node a");
  CHECK(judge_first(nodes).straggler->lateness.rank == Rank{1});
}

TEST_CASE("one node's own finding is the job's", "[unit][lateness]") {
  NodeWindow alone{.node = NodeId{"a"}, .host = "a", .worst = late_rank(2)};
  CHECK(judge_first(std::vector{alone}).straggler->lateness.rank == Rank{2});
  alone.worst->last = 100;
  CHECK(judge_first(std::vector{alone}) == WindowFindings{true, {}});
  alone.worst.reset();
  CHECK(judge_first(std::vector{alone}) == WindowFindings{});
}

TEST_CASE("nodes without 20 numbers in common are not compared", "[unit][lateness]") {
  std::vector<NodeWindow> nodes{node("a", 0), node("b", 30 * ms)};
  nodes[0].told = {latest(0, 32, 0)};
  nodes[1].told = {latest(12, 32, 30 * ms)};
  CHECK(judge_first(nodes).measured);
  nodes[1].told = {latest(13, 32, 30 * ms)};
  CHECK_FALSE(judge_first(nodes).measured);
}

TEST_CASE("what an agent tells beyond the limits is passed over", "[unit][lateness]") {
  std::vector<NodeWindow> nodes{node("a", 0), node("b", 0)};
  nodes[0].told = {latest(0, 100, 0)};
  nodes[1].told = {latest(32, 100, 30 * ms)};  // in common: none of the first 32
  CHECK_FALSE(judge_first(nodes).measured);
  const std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  nodes[0].told = {latest(0, 20, 0)};
  nodes[1].told = {latest(0, 20, 0)};
  for (auto& number : nodes[0].told[0].numbers) number.latest_ns = huge;
  for (auto& number : nodes[1].told[0].numbers) number.latest_ns = -huge;
  nodes[0].told[0].period = Duration::max();
  nodes[0].clock_error = Duration::max();
  nodes[1].clock_error = Duration::min();
  CHECK(judge_first(nodes).measured);
}

TEST_CASE("nodes whose windows have few collectives each are compared all the same", "[unit][lateness]") {
  // Four to a window. The second node sees each window's last one only in the next: if each waited for 20 new ones by
  // itself, they would never tell in one window.
  const auto look = [](std::int64_t count, std::int64_t late_ns) {
    std::vector<RankArrivals> ranks(1);
    for (std::int64_t n = 0; n < count; ++n) {
      const Collective call{.group = "0",
                            .number = n,
                            .operation = "gloo:all_reduce",
                            .elements = 64,
                            .dtype = "Float",
                            .created_ns = 100 * n * ms + late_ns + 1};
      ranks[0].arrivals.push_back({call, {}});
    }
    return ranks;
  };
  LatenessMeter meters[2];
  ComparedNumbers compared;
  int measured = 0;
  for (std::int64_t count = 4; count <= 400; count += 4) {
    std::vector<NodeWindow> nodes{{.node = NodeId{"a"}, .host = "a"}, {.node = NodeId{"b"}, .host = "b"}};
    nodes[0].told = told_arrivals(meters[0].window(look(count, 0)), {}, shared);
    nodes[1].told = told_arrivals(meters[1].window(look(count - 1, 30 * ms)), {}, shared);
    const auto findings = judge_window(nodes, compared);
    if (!findings.measured) continue;
    ++measured;
    REQUIRE(findings.straggler);
    CHECK(findings.straggler->host == "b");
    CHECK(findings.straggler->lateness.count >= lateness_least);
  }
  CHECK(measured == 19);  // 399 collectives, none of them twice
}

TEST_CASE("a number that was compared is not compared again, but in a group that was made again", "[unit][lateness]") {
  ComparedNumbers compared;
  std::vector<NodeWindow> nodes{node("a", 0), node("b", 30 * ms)};
  CHECK(judge_window(nodes, compared).measured);
  CHECK_FALSE(judge_window(nodes, compared).measured);
  for (NodeWindow& each : nodes) each.told = {latest(10, 32, 0)};
  CHECK(judge_window(nodes, compared).measured);
}

TEST_CASE("what is kept of compared signatures has a limit", "[unit][lateness]") {
  ComparedNumbers compared;
  for (int i = 0; i < 1000; ++i) {
    std::vector<NodeWindow> nodes{node("a", 0), node("b", 0)};
    for (NodeWindow& each : nodes) each.told[0].signature.elements = i;
    CHECK(judge_window(nodes, compared).measured);
    REQUIRE(compared.size() <= 2 * told_signatures_max);
  }
}

TEST_CASE("a signature at which nobody waits breaks no row between nodes", "[unit][lateness]") {
  ComparedNumbers compared;
  const auto told = [](std::int64_t first, std::int64_t late_ns, std::int64_t elements) {
    auto one = latest(first, 32, late_ns);
    one.signature.elements = elements;
    return one;
  };
  const auto nodes = [&](std::int64_t of_late, std::int64_t of_other) {
    std::vector<NodeWindow> both{node("a", 0), node("b", 0)};
    both[0].told = {told(of_late, 0, 64), told(of_other, 0, 1)};
    both[1].told = {told(of_late, 30 * ms, 64), told(of_other, 0, 1)};
    return both;
  };
  CHECK(judge_window(nodes(0, 0), compared).straggler);
  CHECK(judge_window(nodes(4, 32), compared) == WindowFindings{});  // twenty of the other alone
  CHECK(judge_window(nodes(24, 40), compared).straggler);

  // Who is late at what is seldom, by far more, hides nobody who is late at each step.
  ComparedNumbers also;
  const auto seldom = [&](std::int64_t of_seldom, std::int64_t of_step) {
    std::vector<NodeWindow> both{node("a", 0), node("b", 0)};
    both[0].told = {told(of_seldom, 90 * ms, 64), told(of_step, 0, 1)};
    both[1].told = {told(of_seldom, 0, 64), told(of_step, 30 * ms, 1)};
    return judge_window(both, also).straggler;
  };
  CHECK(seldom(0, 0)->host == "a");
  for (std::int64_t window = 1; window < 10; ++window) CHECK(seldom(window, 32 * window)->host == "b");

  auto well = nodes(28, 72);
  well[1].told[0] = told(28, 0, 64);
  CHECK(judge_window(well, compared) == WindowFindings{true, {}});
}
