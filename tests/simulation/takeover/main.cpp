// Histories of jobs without a daemon: candidates, etcd, and everything that may happen to them, by chance from a seed.
//
//   takeover_simulation --histories N [--seed FIRST] [--without RULE] [-v]
//
// Ends with 1 at the first history in which a promise is broken, or which does not come to an end; its seed is printed.
// RULE: one of commit, age, echo, decision, witness, waiting, fence.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "candidate_node.hpp"

namespace torchup::simulation {
namespace {

struct Tally {
  std::uint64_t takeovers = 0, rounds = 0, fences = 0, ended = 0;
};

class TakeoverHistory {
 public:
  TakeoverHistory(std::uint64_t seed, Without without, bool verbose)
      : world_{seed, verbose}, count_{static_cast<std::size_t>(world_.pick(2, 5))},
        around_{world_, count_, terms(), without} {}

  Tally run() {
    for (std::size_t node = 0; node < count_; ++node) start(node, 0);
    faults_until_ = TimePoint{} + world_.milliseconds(20'000, 60'000);
    next_fault();
    world_.at(faults_until_, [this] { calm(); });
    world_.run(faults_until_ + 5min);
    bool all = true;
    for (const CandidateNode* node : around_.nodes) all = all && (!node->alive() || node->over());
    if (!all) world_.broken("the job does not end");
    return {around_.takeovers, around_.rounds, around_.fences, around_.verdict ? 1U : 0U};
  }

 private:
  JobTerms terms() {
    JobTerms terms;
    terms.min_nodes = world_.pick(1, static_cast<int>(count_));
    terms.max_nodes = static_cast<int>(count_);
    terms.max_restarts = 1000;
    terms.join_timeout = 1h;
    terms.last_call = 1s;
    terms.lease = std::chrono::milliseconds{world_.pick(1, 3) * 1000};
    return terms;
  }

  void start(std::size_t node, int life) {
    const double rate = 1.0 + world_.pick(-20, 20) / 1000.0;
    owned_.push_back(std::make_unique<CandidateNode>(around_, node, life, rate));
    if (around_.nodes.size() <= node) around_.nodes.resize(node + 1);
    around_.nodes[node] = owned_.back().get();
    lives_[node] = life;
    CandidateNode* const begun = owned_.back().get();
    world_.after(world_.milliseconds(0, 2000), [begun] {
      if (begun->alive()) begun->begin();
    });
  }

  [[nodiscard]] std::size_t any() { return static_cast<std::size_t>(world_.pick(0, static_cast<int>(count_) - 1)); }
  /// Who has the seat is of more interest than others.
  [[nodiscard]] std::size_t victim() {
    if (world_.one_in(2)) {
      for (std::size_t node = 0; node < count_; ++node) {
        if (around_.nodes[node]->serves()) return node;
      }
    }
    return any();
  }

  void next_fault() {
    world_.after(world_.milliseconds(500, 8000), [this] {
      if (world_.now() >= faults_until_) return;
      fault();
      next_fault();
    });
  }

  void fault() {
    const std::size_t node = victim();
    CandidateNode& there = *around_.nodes[node];
    const Duration lasts = world_.milliseconds(200, world_.one_in(4) ? 45'000 : 9'000);
    switch (world_.pick(0, 7)) {
      case 0:
        if (!there.alive() || there.over() || lives_[node] >= 9) return;
        there.kill();
        return world_.after(world_.milliseconds(100, 20'000), [this, node] { start(node, lives_[node] + 1); });
      case 1:
        if (!there.alive()) return;
        world_.say(there.name() + " is stopped");
        there.stop();
        return world_.after(lasts, [&there] { there.go_on(); });
      case 2:
        world_.say(fmt::format("n{} is cut off from etcd", node));
        around_.etcd.set_reaches(node, false);
        return world_.after(lasts, [this, node] { around_.etcd.set_reaches(node, true); });
      case 3:
        world_.say("etcd is away");
        around_.etcd.set_up(false);
        return world_.after(lasts, [this] { around_.etcd.set_up(true); });
      case 4:
        world_.say("the seat is vacated by somebody");
        return around_.etcd.vacate();
      case 5: {  // one side and the other; etcd is with either
        std::vector<bool> side(count_);
        for (std::size_t each = 0; each < count_; ++each) side[each] = world_.one_in(2);
        const bool etcds = world_.one_in(2);
        world_.say("the network is parted");
        for (std::size_t a = 0; a < count_; ++a) {
          if (world_.one_in(2) && side[a] != etcds) around_.etcd.set_reaches(a, false);
          for (std::size_t b = 0; b < count_; ++b) {
            if (side[a] != side[b]) around_.wires.set_cut(a, b, true);
          }
        }
        return world_.after(lasts, [this] { heal(); });
      }
      case 6: {
        const std::size_t other = any();
        world_.say(fmt::format("n{} and n{} are parted", node, other));
        around_.wires.set_cut(node, other, true);
        return world_.after(lasts, [this, node, other] { around_.wires.set_cut(node, other, false); });
      }
      default:
        world_.say(fmt::format("n{} is alone", node));
        for (std::size_t other = 0; other < count_; ++other) around_.wires.set_cut(node, other, true);
        if (world_.one_in(2)) around_.etcd.set_reaches(node, false);
        return world_.after(lasts, [this] { heal(); });
    }
  }

  void heal() {
    around_.wires.heal();
    for (std::size_t node = 0; node < count_; ++node) around_.etcd.set_reaches(node, true);
  }

  /// From here on everything is well, and the job comes to its end.
  void calm() {
    world_.say("all is well from here on");
    heal();
    around_.etcd.set_up(true);
    for (std::size_t node = 0; node < count_; ++node) around_.nodes[node]->go_on();
    world_.after(50s, [this] {  // whatever was begun has ended by then
      heal();
      around_.etcd.set_up(true);
      for (std::size_t node = 0; node < count_; ++node) around_.nodes[node]->go_on();
      around_.workers_may_fail = false;
      around_.workers_may_finish = true;
    });
  }

  World world_;
  std::size_t count_;
  TakeoverWorld around_;
  std::vector<std::unique_ptr<CandidateNode>> owned_;
  std::map<std::size_t, int> lives_;
  TimePoint faults_until_{};
};

int run(int argc, char** argv) {
  std::uint64_t histories = 1000, seed = 1;
  bool verbose = false;
  Without without = Without::nothing;
  const std::map<std::string, Without> rules{
      {"commit", Without::commit},   {"age", Without::age},         {"echo", Without::echo}, {"decision", Without::decision},
      {"witness", Without::witness}, {"waiting", Without::waiting}, {"fence", Without::fence}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool more = i + 1 < argc;
    if (word == "--histories" && more) {
      histories = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--seed" && more) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (word == "--without" && more && rules.contains(argv[i + 1])) {
      without = rules.at(argv[++i]);
    } else if (word == "-v") {
      verbose = true;
    } else {
      std::fprintf(stderr, "takeover_simulation: what is %s?\n", word.c_str());
      return 2;
    }
  }
  Tally sum;
  for (std::uint64_t i = 0; i < histories; ++i) {
    const Tally one = TakeoverHistory{seed + i, without, verbose}.run();
    sum.takeovers += one.takeovers;
    sum.rounds += one.rounds;
    sum.fences += one.fences;
    sum.ended += one.ended;
  }
  std::printf("%llu histories: %llu tenures, %llu starts of workers, %llu fences, %llu ends\n",
              static_cast<unsigned long long>(histories), static_cast<unsigned long long>(sum.takeovers),
              static_cast<unsigned long long>(sum.rounds), static_cast<unsigned long long>(sum.fences),
              static_cast<unsigned long long>(sum.ended));
  // Nothing is shown by histories in which nothing happens.
  return sum.takeovers < 2 * histories || sum.ended * 10 < histories * 9 ? 1 : 0;
}

}  // namespace
}  // namespace torchup::simulation

int main(int argc, char** argv) { return torchup::simulation::run(argc, argv); }
