#pragma once

#include <functional>
#include <memory>

#include "rendezvous/base/types.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// The clock of what machines promise each other: it goes on while the machine is suspended, as theirs does.
///
/// CLOCK_MONOTONIC stands still meanwhile, and whoever counts a lease by it goes on after waking with what the others
/// gave up long ago. Until the first suspension in this process's life both tell the same, so that times of the two
/// may be compared where a suspension does not matter. Never goes backwards.
[[nodiscard]] TimePoint lasting_now();

/// What lasting_now is; another in tests, which cannot suspend the machine.
using LastingClock = std::function<TimePoint()>;

/// A timer by that clock: what falls due while the machine is suspended comes as soon as it wakes, where one of the
/// loop's own would go on counting from where it stood. One descriptor; throws where there is none left, as the loop.
class LastingTimer {
 public:
  explicit LastingTimer(boost::asio::io_context& loop);
  LastingTimer(const LastingTimer&) = delete;
  LastingTimer& operator=(const LastingTimer&) = delete;
  ~LastingTimer();

  /// Calls `then` from the loop, once, when `after` is over; the former call is not made.
  void start(Duration after, std::function<void()> then);
  /// No call is made, and the loop does not wait for this one.
  void cancel();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace torchup
