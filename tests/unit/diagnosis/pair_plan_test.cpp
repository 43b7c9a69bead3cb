#include "rendezvous/core/diagnosis/pair_plan.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "rendezvous/core/link/messages.hpp"

using namespace torchup;

namespace {

constexpr std::int64_t gigabyte = 1'000'000'000;

std::vector<std::string> hosts_of(int count) {
  std::vector<std::string> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back("node" + std::string(1, static_cast<char>('a' + i)));
  return hosts;
}

NodePair pair_of(int one, int other) { return {GroupRank{std::min(one, other)}, GroupRank{std::max(one, other)}}; }

/// All pairs of the plan at 1 GB/s.
std::map<NodePair, PairResult> good_results(int nodes, int matchings = pair_matchings, Round round = Round{0}) {
  std::map<NodePair, PairResult> results;
  for (const Matching& matching : pair_plan(nodes, round, matchings)) {
    for (const NodePair& pair : matching) results[pair] = {pair, true, gigabyte, ""};
  }
  return results;
}

bool has(const NodePair& pair, int node) { return pair.first.value() == node || pair.second.value() == node; }

/// The nodes that are condemned, by their names' last letters.
std::string condemned(const std::map<NodePair, PairResult>& results, int nodes, PairRule rule = PairRule::half) {
  std::vector<PairResult> list;
  for (const auto& [_, result] : results) list.push_back(result);
  std::string letters;
  for (const UnfitNode& node : unfit_in(list, hosts_of(nodes), rule))
    letters += hosts_of(nodes)[static_cast<std::size_t>(node.node.value())].back();
  return letters;
}

}  // namespace

TEST_CASE("a plan has eight matchings, each node once in each, and no pair twice", "[unit][pair_plan]") {
  for (int nodes = 2; nodes <= 70; ++nodes) {
    for (const Round round : {Round{0}, Round{1}, Round{12345}}) {
      const auto plan = pair_plan(nodes, round);
      CAPTURE(nodes, round.value());
      REQUIRE(plan.size() == static_cast<std::size_t>(std::min(8, nodes - 1 + nodes % 2)));
      std::set<NodePair> seen;
      for (const Matching& matching : plan) {
        REQUIRE(matching.size() == static_cast<std::size_t>(nodes / 2));
        std::set<int> busy;
        for (const NodePair& pair : matching) {
          REQUIRE(pair.first < pair.second);
          REQUIRE(pair.first.value() >= 0);
          REQUIRE(pair.second.value() < nodes);
          REQUIRE(busy.insert(pair.first.value()).second);
          REQUIRE(busy.insert(pair.second.value()).second);
          REQUIRE(seen.insert(pair).second);
        }
      }
    }
  }
}

TEST_CASE("where the count is odd, each matching pauses another node", "[unit][pair_plan]") {
  for (const int nodes : {3, 5, 9, 31}) {
    std::map<int, int> pairs;
    const auto plan = pair_plan(nodes, Round{7});
    for (const Matching& matching : plan) {
      for (const NodePair& pair : matching) ++pairs[pair.first.value()], ++pairs[pair.second.value()];
    }
    for (const auto& [_, count] : pairs) CHECK(count >= static_cast<int>(plan.size()) - 1);
  }
}

TEST_CASE("a plan is its round's: the same again, and another in another round", "[unit][pair_plan]") {
  REQUIRE(pair_plan(16, Round{3}) == pair_plan(16, Round{3}));
  REQUIRE(pair_plan(16, Round{3}) != pair_plan(16, Round{4}));
  std::set<NodePair> seen;
  for (int round = 0; round < 40; ++round) {
    for (const Matching& matching : pair_plan(16, Round{round}, nccl_pair_matchings))
      seen.insert(matching.begin(), matching.end());
  }
  REQUIRE(seen.size() == 120);  // in time all pairs are tried
}

TEST_CASE("a plan has limits", "[unit][pair_plan]") {
  REQUIRE(pair_plan(0, Round{0}).empty());
  REQUIRE(pair_plan(1, Round{0}).empty());
  REQUIRE(pair_plan(nodes_max, Round{0}, 1).at(0).size() == nodes_max / 2);
  REQUIRE(pair_plan(nodes_max + 1, Round{0}).empty());
  REQUIRE(pair_plan(8, Round{0}, -1).empty());
}

TEST_CASE("a node that reaches nobody is unfit, and nobody else is", "[unit][pair_plan]") {
  for (const int nodes : {3, 4, 5, 8, 16, 21}) {
    for (int bad = 0; bad < nodes; ++bad) {
      auto results = good_results(nodes);
      for (auto& [pair, result] : results) result.connected = !has(pair, bad);
      CAPTURE(nodes, bad);
      REQUIRE(condemned(results, nodes) == std::string(1, static_cast<char>('a' + bad)));
    }
  }
}

TEST_CASE("half of a node's pairs condemn it, fewer do not", "[unit][pair_plan]") {
  auto results = good_results(16);
  int left = 4;
  for (auto& [pair, result] : results) {
    if (has(pair, 5) && left-- > 0) result.bytes_per_s = gigabyte / 2 - 1;
  }
  REQUIRE(condemned(results, 16) == "f");
  for (auto& [pair, result] : results) {
    if (!has(pair, 5) || result.bytes_per_s == gigabyte) continue;
    result.bytes_per_s = gigabyte / 2;  // not less than half
    break;
  }
  REQUIRE(condemned(results, 16).empty());
}

TEST_CASE("of two ends nobody knows which one it is", "[unit][pair_plan]") {
  std::vector<PairResult> results{{pair_of(0, 1), false, 0, "connection refused"}};
  const auto unfit = unfit_in(results, hosts_of(2));
  REQUIRE(unfit == std::vector<UnfitNode>{
                       {GroupRank{0}, "nodea has 1 of 1 pairs bad: no connection with nodeb (connection refused)"},
                       {GroupRank{1}, "nodeb has 1 of 1 pairs bad: no connection with nodea (connection refused)"}});
  results[0].connected = true;
  REQUIRE(unfit_in(results, hosts_of(2)).empty());  // it is the median itself
}

TEST_CASE("two halves that do not reach each other are all unfit", "[unit][pair_plan]") {
  auto results = good_results(8);
  for (auto& [pair, result] : results) result.connected = (pair.first.value() < 4) == (pair.second.value() < 4);
  REQUIRE(condemned(results, 8) == "abcdefgh");
}

TEST_CASE("what the worse end says counts, and a reason names the other ends", "[unit][pair_plan]") {
  std::vector<PairResult> results;
  for (const auto& [pair, result] : good_results(6)) results.push_back(result);
  results.push_back({pair_of(1, 0), false, 0, "no route\nto host"});
  results.push_back({pair_of(1, 2), true, gigabyte / 10, ""});
  results.push_back({pair_of(1, 3), true, -5, ""});
  const auto unfit = unfit_in(results, hosts_of(6));
  REQUIRE(unfit.size() == 1);
  REQUIRE(unfit[0].reason ==
          "nodeb has 3 of 5 pairs bad: no connection with nodea (no route\\nto host); 100.0 MB/s with nodec, 0.0 MB/s "
          "with noded, where the median is 1.0 GB/s");
}

TEST_CASE("over NCCL both pairs must be bad", "[unit][pair_plan]") {
  auto results = good_results(8, nccl_pair_matchings);
  int left = 1;
  for (auto& [pair, result] : results) {
    if (has(pair, 3) && left-- > 0) result.connected = false;
  }
  REQUIRE(condemned(results, 8, PairRule::all).empty());
  for (auto& [pair, result] : results) {
    if (has(pair, 3)) result.connected = false;
  }
  REQUIRE(condemned(results, 8, PairRule::all) == "d");
}

TEST_CASE("results about no pair of ours are passed over", "[unit][pair_plan]") {
  const std::vector<PairResult> results{{{GroupRank{-1}, GroupRank{1}}, false, 0, ""},
                                        {{GroupRank{0}, GroupRank{2}}, false, 0, ""},
                                        {{GroupRank{1}, GroupRank{1}}, false, 0, ""},
                                        {{GroupRank{1}, GroupRank{0}}, false, 0, ""}};
  REQUIRE(unfit_in(results, hosts_of(2)).empty());
  REQUIRE(unfit_in({}, {}).empty());
}

TEST_CASE("a few bad nodes among many good ones are found, whoever they are", "[unit][pair_plan]") {
  std::mt19937 chance{17};
  for (int turn = 0; turn < 200; ++turn) {
    const int nodes = 8 + static_cast<int>(chance() % 17);
    std::set<int> bad;
    for (int i = 0; i < nodes / 8; ++i) bad.insert(static_cast<int>(chance() % static_cast<unsigned>(nodes)));
    auto results = good_results(nodes, pair_matchings, Round{turn});
    for (auto& [pair, result] : results) {
      result.bytes_per_s += static_cast<std::int64_t>(chance() % (gigabyte / 4));
      if (bad.contains(pair.first.value()) || bad.contains(pair.second.value())) result.bytes_per_s /= 4;
    }
    std::string expected;
    for (const int node : bad) expected += static_cast<char>('a' + node);
    CAPTURE(turn, nodes);
    REQUIRE(condemned(results, nodes) == expected);
  }
}

TEST_CASE("a condemned node tries its own pairs again, and is measured by the median of then", "[unit][pair_plan]") {
  auto first = good_results(4);
  for (auto& [pair, result] : first) {
    if (pair.second == GroupRank{3}) result = {pair, false, 0, "Connection timed out"};
  }
  std::vector<PairResult> all;
  for (const auto& [_, result] : first) all.push_back(result);
  const auto hosts = hosts_of(4);
  REQUIRE(unfit_in(all, hosts).size() == 1);
  const double median = median_rate(all, hosts.size());
  CHECK(median == static_cast<double>(gigabyte));
  CHECK(median_rate({}, 4) == 0);

  std::vector<PairResult> own;
  for (const PairResult& result : all) {
    if (result.pair.second == GroupRank{3}) own.push_back(result);
  }
  REQUIRE(own.size() == 3);
  CHECK(unfit_again(own, hosts, GroupRank{3}, median).starts_with("noded has 3 of 3 pairs bad: no connection with"));
  for (PairResult& result : own) result = {result.pair, true, gigabyte / 2, ""};
  CHECK(unfit_again(own, hosts, GroupRank{3}, median).empty());
  own[0].bytes_per_s = own[1].bytes_per_s = gigabyte / 2 - 1;
  CHECK(unfit_again(own, hosts, GroupRank{3}, median).starts_with("noded has 2 of 3 pairs bad"));
  own[1].bytes_per_s = gigabyte;
  CHECK(unfit_again(own, hosts, GroupRank{3}, median).empty());
  CHECK(unfit_again({}, hosts, GroupRank{3}, median).empty());
  CHECK(unfit_again(own, hosts, GroupRank{9}, median).empty());
  CHECK(unfit_again(own, {}, GroupRank{3}, median).empty());
}
