#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/base/types.hpp"

namespace torchup::simulation {

using namespace std::chrono_literals;

/// True time, chance, and what happens when. Nothing in it sleeps.
class World {
 public:
  World(std::uint64_t seed, bool verbose) : seed_{seed}, verbose_{verbose}, random_{seed} {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] TimePoint now() const { return now_; }
  [[nodiscard]] int pick(int least, int most) { return std::uniform_int_distribution<int>{least, most}(random_); }
  [[nodiscard]] bool one_in(int times) { return pick(1, times) == 1; }
  [[nodiscard]] Duration milliseconds(int least, int most) { return std::chrono::milliseconds{pick(least, most)}; }

  void at(TimePoint time, std::function<void()> what) {
    queue_.push_back({time, order_++, std::move(what)});
    std::push_heap(queue_.begin(), queue_.end());
  }
  void after(Duration delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }

  /// Until nothing is left to happen, or `end`.
  void run(TimePoint end) {
    while (!queue_.empty() && queue_.front().time <= end) {
      std::pop_heap(queue_.begin(), queue_.end());
      const Happening next = std::move(queue_.back());
      queue_.pop_back();
      now_ = std::max(now_, next.time);
      next.what();
    }
  }

  /// One line of the history, with -v.
  [[nodiscard]] bool verbose() const { return verbose_; }
  void say(const std::string& line) const {
    if (verbose_) std::printf("%8.3f %s\n", std::chrono::duration<double>(now_ - TimePoint{}).count(), line.c_str());
  }
  void promise(bool kept, const char* what) {
    if (!kept) broken(what);
  }
  [[noreturn]] void broken(const std::string& what) const {
    std::fprintf(stderr, "seed %llu: at %.3f s: %s\n", static_cast<unsigned long long>(seed_),
                 std::chrono::duration<double>(now_ - TimePoint{}).count(), what.c_str());
    std::fflush(stdout);
    std::_Exit(1);
  }

 private:
  struct Happening {
    TimePoint time;
    std::uint64_t order;
    std::function<void()> what;
    bool operator<(const Happening& other) const { return std::pair{time, order} > std::pair{other.time, other.order}; }
  };
  std::uint64_t seed_;
  bool verbose_;
  std::mt19937_64 random_;
  TimePoint now_{};
  std::uint64_t order_ = 0;
  std::vector<Happening> queue_;  ///< a heap
};

/// A process: it has a clock of its own, which begins anywhere and runs a little fast or slow; it may be stopped, and
/// then does later what lies before it, by the clock's time of then.
class Process {
 public:
  /// `rate`: of its clock, 1.0 is true.
  Process(World& world, double rate) : world_{world}, rate_{rate}, offset_{world.milliseconds(0, 1'000'000)} {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  [[nodiscard]] TimePoint clock() const {
    return TimePoint{} + offset_ + std::chrono::duration_cast<Duration>((world_.now() - TimePoint{}) * rate_);
  }
  [[nodiscard]] bool alive() const { return alive_; }
  [[nodiscard]] bool stopped() const { return stopped_; }
  [[nodiscard]] int stops() const { return stops_; }
  [[nodiscard]] TimePoint awake_since() const { return awake_since_; }

  /// Has it do something: now, or when it goes on.
  void run(std::function<void()> what) {
    if (!alive_) return;
    if (stopped_) return pending_.push_back(std::move(what));
    what();
  }
  /// The same after `delay` of true time.
  void later(Duration delay, std::function<void()> what) {
    world_.after(delay, [this, what = std::move(what)]() mutable { run(std::move(what)); });
  }
  void stop() {
    if (!std::exchange(stopped_, true)) ++stops_;
  }
  void go_on() {
    if (!std::exchange(stopped_, false)) return;
    awake_since_ = world_.now();
    for (auto& what : std::exchange(pending_, {})) run(std::move(what));
  }
  void kill() {
    alive_ = false;
    pending_.clear();
  }

  /// What to do at the process's deadlines.
  void on_wake(std::function<std::optional<TimePoint>()> wake) { wake_ = std::move(wake); }
  /// At the latest at `deadline` of its own clock; what was asked for before stays when it is sooner.
  void arm(std::optional<TimePoint> deadline) {
    if (!deadline || (armed_ && *armed_ <= *deadline)) return;
    armed_ = deadline;
    const auto wait = std::chrono::duration_cast<Duration>((*deadline - clock()) / rate_) + 1us;
    world_.after(std::max<Duration>(wait, 1us), [this, number = ++timer_] {
      if (number != timer_) return;
      armed_.reset();
      run([this] { arm(wake_()); });
    });
  }
  /// Its clock is set: to it, that much time has passed, or it stood still so long.
  void skip(Duration gap) {
    offset_ += gap;
    ++timer_;
    armed_.reset();
    run([this] { arm(wake_()); });
  }

 private:
  World& world_;
  double rate_;
  Duration offset_;
  bool alive_ = true, stopped_ = false;
  int stops_ = 0;
  TimePoint awake_since_{};
  std::vector<std::function<void()>> pending_;
  std::function<std::optional<TimePoint>()> wake_;
  std::optional<TimePoint> armed_;
  std::uint64_t timer_ = 0;
};

}  // namespace torchup::simulation
