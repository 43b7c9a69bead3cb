#include "rendezvous/core/diagnosis/straggler_watch.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

using namespace torchup;
using namespace std::chrono_literals;

namespace {

LateMember late(int rank, const std::string& host = "nodeb") {
  Lateness lateness{.signature = {"0", "gloo:all_reduce", 1 << 20}, .dtype = "Float", .rank = Rank{rank}};
  lateness.count = 256;
  lateness.last = 237;
  lateness.late = 31ms;
  lateness.period = 142ms;
  return {NodeId{host}, host, lateness};
}
const WindowFindings nobody{true, {}};
const WindowFindings unmeasured{};
WindowFindings with(int rank) { return {true, late(rank)}; }

bool is_found(const std::vector<StragglerNews>& news, int rank) {
  const auto* found = news.empty() ? nullptr : std::get_if<StragglerFound>(&news.back());
  return found && found->rank == Rank{rank};
}

enum class Noise { even, heavy };

/// Ranks that compute, meet in a collective, and compute again.
class Training {
 public:
  Training(std::uint32_t seed, std::size_t ranks, Noise noise, double slower)
      : chance_{seed}, noise_{noise}, slower_{slower}, slow_{seed % ranks}, ranks_(ranks) {
    for (std::size_t i = 0; i < ranks; ++i) ranks_[i].rank = Rank{static_cast<int>(i)};
  }
  [[nodiscard]] int slow() const { return static_cast<int>(slow_); }
  static constexpr std::size_t kept = 100;
  /// So many steps, and the newest collectives of each rank.
  const std::vector<RankArrivals>& run(int steps) {
    for (int step = 0; step < steps; ++step) {
      double end_ms = 0;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        const double at_ms = now_ms_ + work_ms() * (i == slow_ ? slower_ : 1);
        Arrival arrival;
        arrival.call = {.group = "0", .number = number_, .operation = "gloo:all_reduce", .elements = 64};
        arrival.call.created_ns = static_cast<std::int64_t>(at_ms * 1e6);
        auto& arrivals = ranks_[i].arrivals;
        arrivals.push_back(arrival);
        if (arrivals.size() > kept) arrivals.erase(arrivals.begin());
        end_ms = std::max(end_ms, at_ms);
      }
      now_ms_ = end_ms + 5;
      ++number_;
    }
    return ranks_;
  }

 private:
  double normal() {
    const auto even = [&] { return (static_cast<double>(chance_()) + 1) / 4294967297.0; };
    return std::sqrt(-2 * std::log(even())) * std::cos(6.283185307179586 * even());
  }
  double work_ms() {
    if (noise_ == Noise::even) return 100 * std::max(1 + 0.05 * normal(), 0.1);
    const double tail = chance_() % 50 == 0 ? 2000 * std::exp(normal()) : 0;  // now and then somebody stands still
    return 100 * std::exp(0.7 * normal()) + tail;
  }

  std::mt19937 chance_;
  Noise noise_;
  double slower_;
  std::size_t slow_;
  std::vector<RankArrivals> ranks_;
  double now_ms_ = 1000;
  std::int64_t number_ = 0;
};

/// In which window somebody is told, and who: of `windows` with so many steps each.
std::optional<std::pair<int, int>> first_told(Training& training, int windows, int steps) {
  LatenessMeter meter;
  StragglerWatch watch;
  ComparedNumbers compared;
  for (int window = 1; window <= windows; ++window) {
    NodeWindow node;
    node.worst = meter.window(training.run(steps)).worst;
    const auto news = watch.window(judge_window(std::vector{node}, compared));
    if (news.empty()) continue;
    return std::pair{window, std::get<StragglerFound>(news.front()).rank->value()};
  }
  return std::nullopt;
}

}  // namespace

TEST_CASE("a straggler of three windows in a row is told, once", "[unit][straggler]") {
  StragglerWatch watch;
  REQUIRE(watch.window(with(3)).empty());
  REQUIRE(watch.window(with(3)).empty());
  const auto news = watch.window(with(3));
  REQUIRE(news.size() == 1);
  const auto& found = std::get<StragglerFound>(news[0]);
  REQUIRE(to_text(found) ==
          "rank 3 (nodeb) is late: last in 92 % of 256 all_reduce (4.0 MiB), by 31 ms of a 142 ms step; the others "
          "wait for it");
  REQUIRE(found.rank == Rank{3});
  REQUIRE(found.host == "nodeb");
  REQUIRE(found.share_percent == 21);
  REQUIRE(found.late_ms == 31);
  REQUIRE(found.step_ms == 142);
  REQUIRE(found.last_percent == 92);
  REQUIRE(found.operation == "all_reduce");
  for (int i = 0; i < 10; ++i) REQUIRE(watch.window(with(3)).empty());
}

TEST_CASE("another rank, or a window without, begins anew", "[unit][straggler]") {
  StragglerWatch watch;
  for (const auto& findings : {with(3), with(3), with(2), with(3), with(3), nobody, with(3), with(3)})
    REQUIRE(watch.window(findings).empty());
  REQUIRE(is_found(watch.window(with(3)), 3));
}

TEST_CASE("it is over after three windows without, and may come again", "[unit][straggler]") {
  StragglerWatch watch;
  for (int i = 0; i < 3; ++i) watch.window(with(3));
  for (const auto& findings : {nobody, nobody, with(3), nobody, nobody}) REQUIRE(watch.window(findings).empty());
  const auto news = watch.window(nobody);
  REQUIRE(news.size() == 1);
  REQUIRE(std::get<StragglerOver>(news[0]) == StragglerOver{Rank{3}, "nodeb"});
  REQUIRE(to_text(std::get<StragglerOver>(news[0])) == "rank 3 (nodeb) is not late any more");
  REQUIRE(watch.window(nobody).empty());
  REQUIRE(watch.window(with(3)).empty());
  REQUIRE(watch.window(with(3)).empty());
  REQUIRE(is_found(watch.window(with(3)), 3));
}

TEST_CASE("one straggler takes the place of another", "[unit][straggler]") {
  StragglerWatch watch;
  for (int i = 0; i < 3; ++i) watch.window(with(3));
  REQUIRE(watch.window(with(1)).empty());
  REQUIRE(watch.window(with(1)).empty());
  const auto news = watch.window(with(1));
  REQUIRE(news.size() == 2);
  REQUIRE(std::get<StragglerOver>(news[0]).rank == Rank{3});
  REQUIRE(is_found(news, 1));
}

TEST_CASE("a window in which nothing was compared counts for neither", "[unit][straggler]") {
  StragglerWatch watch;
  REQUIRE(watch.window(with(3)).empty());
  REQUIRE(watch.window(unmeasured).empty());
  REQUIRE(watch.window(with(3)).empty());
  REQUIRE(watch.window(unmeasured).empty());
  REQUIRE(is_found(watch.window(with(3)), 3));
  for (int i = 0; i < 10; ++i) REQUIRE(watch.window(unmeasured).empty());
  REQUIRE(watch.window(nobody).empty());
}

TEST_CASE("lines name a node, sizes and the CPU's side as they are known", "[unit][straggler]") {
  StragglerFound found{.rank = {}, .host = "nodeb", .late_ms = 1.44, .step_ms = 14.2, .last_percent = 80};
  found.operation = "barrier";
  found.count = 32;
  REQUIRE(to_text(found) ==
          "node nodeb is late: last in 80 % of 32 barrier, by 1.4 ms of a 14 ms step; the others wait for it");
  found.rank = Rank{0};
  found.bytes = 512;
  found.cpu_side = true;
  REQUIRE(to_text(found) ==
          "rank 0 (nodeb) is late on the CPU side: last in 80 % of 32 barrier (512 B), by 1.4 ms of a 14 ms step; "
          "the others wait for it");
  found.bytes = std::int64_t{3} << 50;
  REQUIRE(to_text(found).find("(3072.0 TiB)") != std::string::npos);
  found.operation = "x\x1b[2J";
  REQUIRE(to_text(found).find('\x1b') == std::string::npos);
}

TEST_CASE("a rank that is 30 % slower is told after three windows, whatever the seed", "[unit][straggler]") {
  for (const std::size_t ranks : {2U, 4U}) {
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
      Training training{seed, ranks, Noise::even, 1.3};
      CAPTURE(ranks, seed);
      REQUIRE(first_told(training, 4, 60) == std::pair{3, training.slow()});
    }
  }
}

TEST_CASE("where a window has few steps, it takes as many as are needed", "[unit][straggler]") {
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    Training training{seed, 2, Noise::even, 1.3};
    REQUIRE(first_told(training, 12, 6) == std::pair{12, training.slow()});  // 24 in four windows
  }
}

TEST_CASE("among equal ranks nobody is told, whatever the seed", "[unit][straggler][many]") {
  for (const std::size_t ranks : {2U, 4U}) {
    for (const Noise noise : {Noise::even, Noise::heavy}) {
      for (std::uint32_t seed = 0; seed < 100; ++seed) {
        Training training{seed, ranks, noise, 1};
        CAPTURE(ranks, seed);
        REQUIRE_FALSE(first_told(training, 9, 20));
      }
    }
  }
}

TEST_CASE("between nodes a rank that is 30 % slower is told, and equal nodes are not", "[unit][straggler][many]") {
  const std::vector<std::string> shared{"0"};
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    for (const double slower : {1.0, 1.3}) {
      Training training{seed, 4, slower > 1 ? Noise::even : Noise::heavy, slower};  // two ranks on each of two nodes
      LatenessMeter meters[2];
      StragglerWatch watch;
      ComparedNumbers compared;
      std::optional<StragglerFound> told;
      for (int window = 0; window < 8; ++window) {
        const auto& ranks = training.run(100);
        std::vector<NodeWindow> nodes;
        for (std::size_t i = 0; i < 2; ++i) {
          const auto local = meters[i].window(std::span{ranks}.subspan(2 * i, 2));
          const std::string name{i == 0 ? "a" : "b"};
          nodes.push_back({.node = NodeId{name}, .host = name, .clock_error = 1ms, .worst = local.worst});
          nodes.back().told = told_arrivals(local, {.offset = i == 0 ? 0ms : 1ms, .error = 1ms}, shared);
        }
        const auto news = watch.window(judge_window(nodes, compared));
        if (!news.empty()) told = std::get<StragglerFound>(news.front());
      }
      CAPTURE(seed, slower);
      REQUIRE(told.has_value() == (slower > 1));
      if (told) REQUIRE(told->rank == Rank{training.slow()});
    }
  }
}
