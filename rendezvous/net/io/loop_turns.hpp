#pragma once

#include <time.h>

#include <boost/asio/io_context.hpp>
#include <chrono>

#include "rendezvous/core/ops/turn_histogram.hpp"

namespace torchup {

/// Processor time of this thread.
[[nodiscard]] inline Duration thread_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec};
}

/// Runs `loop` to its end, and tells `turns` how long each of its turns was away from the others: one handler.
///
/// Where the loop does not sleep, a turn begins when the one before has ended. Nobody tells when it has woken: the turn
/// that follows a sleep counts by its processor time, of which a sleep has none.
inline void run_turns(boost::asio::io_context& loop, TurnHistogram& turns) {
  TimePoint ended = std::chrono::steady_clock::now();
  for (;;) {
    while (loop.poll_one() > 0) {
      const TimePoint now = std::chrono::steady_clock::now();
      turns.add(now - ended);
      ended = now;
    }
    const Duration before = thread_time();
    if (loop.run_one() == 0) return;
    turns.add(thread_time() - before);
    ended = std::chrono::steady_clock::now();
  }
}

}  // namespace torchup
