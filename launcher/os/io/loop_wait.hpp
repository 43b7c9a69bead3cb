#pragma once

#include <optional>
#include <utility>

#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// A wait on the loop for what another thread does. Who waits owns it, by a shared pointer, and the thread knows it by
/// a weak one, which only what is posted to the loop may lock: a thread that is stuck in a write outlives the loop, and
/// with it the timer.
template <class T>
struct LoopWait {
  LoopWait(asio::io_context& loop, TimePoint limit) : timer{loop} { timer.expires_at(limit); }
  void end(T with) {
    answer = std::move(with);
    timer.cancel();
  }

  Timer timer;
  std::optional<T> answer;  ///< nothing: the limit came first
};

}  // namespace torchup
