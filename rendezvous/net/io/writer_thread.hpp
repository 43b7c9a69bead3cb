#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

namespace torchup {

/// A thread for what may block: writes to a disk, a pipe, a terminal. It does one piece of work after the other; giving
/// it one never waits. No signal is delivered to it, so that the loop gets all of them.
///
/// It starts with the first piece of work. Where the system gives no thread, work is done at once by whoever gives it:
/// better a loop that waits than a report that nobody sees.
class WriterThread {
 public:
  WriterThread();
  WriterThread(const WriterThread&) = delete;
  WriterThread& operator=(const WriterThread&) = delete;
  /// Ends the thread if it is idle, else leaves it behind: it may be blocked in a write that nobody can end.
  ~WriterThread();

  /// `bytes`: what the work is counted as until it is done; at least 1.
  void put(std::function<void()> work, std::size_t bytes);
  [[nodiscard]] std::size_t queued_bytes() const;
  /// Calls `notice` once, here or from the thread, when at most `level` bytes are queued.
  void when_at_most(std::size_t level, std::function<void()> notice);

 private:
  struct State;
  bool start();
  std::shared_ptr<State> state_;  ///< shared with the thread
  std::thread thread_;
};

}  // namespace torchup
