#pragma once

#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// How long a start has what it needs. Short jobs are over by then, and pay nothing.
inline constexpr Duration start_memory_kept = std::chrono::seconds{1};

/// Gives back to the system what only the start of this process has needed, which is most of its memory: what is free
/// of the heap, and all pages of programs and libraries that nobody has changed. Who needs one of these has it from the
/// page cache, at a minor fault. Breakpoints that a debugger has set are lost: it wrote them into such pages.
void give_back_start_memory();

/// Does so once, `start_memory_kept` after the first workers have started.
class StartMemory {
 public:
  explicit StartMemory(asio::io_context& loop) : timer_{loop} {}
  void workers_started();

 private:
  asio::steady_timer timer_;
  bool waits_ = false;  ///< or has given it back
};

}  // namespace torchup
