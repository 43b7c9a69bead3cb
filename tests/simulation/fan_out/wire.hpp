#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/simulation/world.hpp"

namespace torchup::simulation {

/// The two directions of one link: of `ssh HOST torchup --link`, that is, with TCP below it. Each delivers in order.
/// While it is cut nothing arrives, and all of it afterwards.
class Wire : public std::enable_shared_from_this<Wire> {
 public:
  enum Side : std::uint8_t { front = 0, host = 1 };

  explicit Wire(World& world) : world_{world} {}

  /// Who hears there; nobody does before.
  void attach(Side side, Process& process) { ends_[side].process = &process; }
  /// The other side has closed it, or its machine says that nobody is there.
  void on_closed(Side side, std::function<void()> closed) { ends_[side].closed = std::move(closed); }

  void send(Side from, std::function<void()> read) {
    if (!ends_[from].open) return;
    pass(from, [self = shared_from_this(), to = other(from), read = std::move(read)] {
      if (self->ends_[to].open) read();
    });
  }
  void close(Side from) {
    if (!std::exchange(ends_[from].open, false)) return;
    pass(from, [self = shared_from_this(), to = other(from)] {
      End& there = self->ends_[to];
      if (std::exchange(there.open, false) && there.closed) there.closed();
    });
  }
  /// What carries it is killed where the front is: both sides see the end of it, the host's only where something
  /// arrives.
  void lose_client() {
    End& here = ends_[front];
    const bool was_open = here.open;
    close(front);
    if (was_open) at(front, world_.now() + latency(), [self = shared_from_this()] { self->ends_[front].closed(); });
  }
  void cut() { cut_ = true; }
  void heal() {
    if (std::exchange(cut_, false)) healed_at_ = world_.now();
    for (const Side to : {front, host}) {
      for (auto& what : std::exchange(ends_[to].held, {})) arrive(to, std::move(what));
    }
  }
  [[nodiscard]] bool is_cut() const { return cut_; }
  [[nodiscard]] TimePoint healed_at() const { return healed_at_; }
  [[nodiscard]] bool open(Side side) const { return ends_[side].open; }

 private:
  struct End {
    bool open = true;
    Process* process = nullptr;
    std::function<void()> closed = {};
    TimePoint last_arrival{};
    std::vector<std::function<void()>> held = {};
  };
  static Side other(Side side) { return side == front ? host : front; }
  [[nodiscard]] Duration latency() { return std::chrono::microseconds{world_.pick(50, 20'000)}; }
  void pass(Side from, std::function<void()> what) {
    const Side to = other(from);
    if (cut_) return ends_[to].held.push_back(std::move(what));
    arrive(to, std::move(what));
  }
  void arrive(Side to, std::function<void()> what) {
    End& there = ends_[to];
    there.last_arrival = std::max(there.last_arrival + std::chrono::microseconds{1}, world_.now() + latency());
    at(to, there.last_arrival, std::move(what));
  }
  void at(Side to, TimePoint when, std::function<void()> what) {
    world_.at(when, [self = shared_from_this(), to, what = std::move(what)] {
      if (Process* const process = self->ends_[to].process) process->run(what);
    });
  }

  World& world_;
  bool cut_ = false;
  TimePoint healed_at_{};
  End ends_[2];
};
using WirePtr = std::shared_ptr<Wire>;

}  // namespace torchup::simulation
