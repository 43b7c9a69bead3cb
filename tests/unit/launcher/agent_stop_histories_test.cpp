#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <memory>
#include <random>

#include "tests/unit/launcher/running_agent.hpp"

namespace torchup {

using namespace agent_test;

namespace {

constexpr Duration lead = 20s;
constexpr TimePoint time_ends = t0 + 60s;
constexpr Duration skew_max = 4s;

/// Three nodes with clocks of their own, workers that do as they like, and a coordinator that takes the first word.
class TimedJob {
 public:
  explicit TimedJob(unsigned seed) : random_{seed} {
    LaunchConfig config = two_workers();
    config.stop_grace = 25s;
    config.stop_before = StopBefore{.lead = lead};
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      nodes_[node].agent = std::make_unique<Agent>(config, AgentIdentity{NodeId{"n"}, "host", {}, {}});
      nodes_[node].skew = pick(-skew_max, skew_max);
      tell(node, Begin{});
      tell(node, FromCoordinator{placed()});
      for (int rank = 0; rank < 2; ++rank) tell(node, WorkerStarted{LocalRank{rank}, 100 + rank});
      tell(node, EndOfTime{time_ends + nodes_[node].skew});
    }
    if (chance(3)) plan(pick(1s, 70s), [this] { ends(any_node(), 0, chance(2) ? 0 : 1); });
    if (chance(8)) {  // a job that is done before its time
      for (std::size_t node = 0; node < nodes_.size(); ++node) {
        for (int rank = 0; rank < 2; ++rank) plan(pick(1s, 45s), [this, node, rank] { ends(node, rank, 0); });
      }
    }
  }

  void run() {
    while (!plans_.empty()) {
      const auto next = plans_.begin();
      now_ = next->first;
      const auto deed = std::move(next->second);
      plans_.erase(next);
      deed();
    }
    for (const Node& node : nodes_) {
      REQUIRE(node.verdict);
      REQUIRE(node.verdict == verdict_->exit_code);
      REQUIRE(node.asked <= 1);
      if (verdict_->exit_code != 75) continue;  // it was decided before
      REQUIRE(node.finished < time_ends + skew_max);
      if (node.killed) REQUIRE(*node.killed > time_ends - skew_max - lead / 5);
    }
  }

 private:
  struct Node {
    std::unique_ptr<Agent> agent = {};
    Duration skew{0};
    std::array<bool, 2> alive{true, true};
    int asked = 0;
    std::optional<TimePoint> killed = {};
    std::optional<int> verdict = {};
    TimePoint finished{};
  };

  Duration pick(Duration least, Duration most) {
    return Duration{std::uniform_int_distribution<Duration::rep>{least.count(), most.count()}(random_)};
  }
  bool chance(int of) { return std::uniform_int_distribution{1, of}(random_) == 1; }
  std::size_t any_node() { return std::uniform_int_distribution<std::size_t>{0, 2}(random_); }
  void plan(Duration later, std::function<void()> deed) { plans_.emplace(now_ + later, std::move(deed)); }

  void tell(std::size_t index, const AgentEvent& event) {
    Node& node = nodes_[index];
    for (const AgentAction& action : node.agent->step(event, now_)) {
      std::visit([&](const auto& what) { perform(index, what); }, action);
    }
    if (const auto due = node.agent->deadline()) {
      plan(std::max(Duration{0}, *due - now_), [this, index] {
        if (const auto still = nodes_[index].agent->deadline(); still && *still <= now_) tell(index, Wake{});
      });
    }
  }

  void ends(std::size_t node, int rank, int code) {
    if (!std::exchange(nodes_[node].alive.at(static_cast<std::size_t>(rank)), false)) return;
    plan(0s, [this, node, rank, code] { tell(node, ended(rank, code)); });
  }

  template <class T>
  void perform(std::size_t, const T&) {}
  void perform(std::size_t node, const DrainWorkers& drain) {
    if (drain.insist) return;
    ++nodes_[node].asked;
    for (int rank = 0; rank < 2; ++rank) {
      if (chance(4)) continue;  // it hears nothing
      constexpr std::array<int, 4> codes{0, 1, 75, -11};
      const int code = codes.at(static_cast<std::size_t>(std::uniform_int_distribution{0, 3}(random_)));
      plan(pick(0s, 25s), [this, node, rank, code] { ends(node, rank, code); });
    }
  }
  void perform(std::size_t node, const SignalWorkers& signals) {
    if (!signals.ends || chance(3)) return;  // it is deaf
    for (const LocalRank rank : signals.workers) plan(pick(0s, 3s), [=, this] { ends(node, rank.value(), -15); });
  }
  void perform(std::size_t node, const KillWorkers& kill) {
    nodes_[node].killed = now_;
    for (const LocalRank rank : kill.workers) ends(node, rank.value(), -9);
  }
  void perform(std::size_t node, const SweepDescendants&) {
    plan(pick(0s, 50ms), [this, node] { tell(node, DescendantsGone{}); });
  }
  void perform(std::size_t node, const Finish& finish) {
    nodes_[node].verdict = finish.verdict.exit_code;
    nodes_[node].finished = now_;
  }
  void perform(std::size_t, const Send& send) {
    plan(pick(0s, 100ms), [this, message = send.message] {
      if (const auto* leave = std::get_if<Leave>(&message)) decide(verdict_of(*leave));
      if (std::holds_alternative<WorkersFailed>(message)) decide(verdict(1));
      if (std::holds_alternative<WorkersSucceeded>(message) && ++succeeded_ == nodes_.size()) decide(verdict(0));
    });
  }
  void decide(const Verdict& verdict) {
    if (verdict_) return;
    verdict_ = verdict;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      plan(pick(0s, 100ms), [this, node] { tell(node, FromCoordinator{End{*verdict_}}); });
    }
  }

  std::mt19937 random_;
  std::multimap<TimePoint, std::function<void()>> plans_;
  TimePoint now_ = t0;
  std::array<Node, 3> nodes_;
  std::optional<Verdict> verdict_;
  std::size_t succeeded_ = 0;
};

}  // namespace

TEST_CASE("however clocks and workers differ, all nodes end alike before their time is over", "[unit][agent][many]") {
  for (unsigned seed = 0; seed < 10'000; ++seed) {
    CAPTURE(seed);
    TimedJob{seed}.run();
  }
}

}  // namespace torchup
