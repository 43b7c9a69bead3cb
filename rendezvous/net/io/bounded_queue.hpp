#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace torchup {

/// Messages from the loop to one writer thread, counted in bytes. Putting never waits: whoever puts looks at `bytes()`
/// first and stops its own sources when that is too much.
template <class Message>
class BoundedQueue {
 public:
  /// From the loop. `size` counts until the writer says done(size).
  void put(Message message, std::size_t size) {
    {
      const std::lock_guard lock{mutex_};
      waiting_.push_back(std::move(message));
      bytes_ += size;
    }
    filled_.notify_one();
  }

  /// No more messages will come: `take` returns what is left, then nothing.
  void close() {
    {
      const std::lock_guard lock{mutex_};
      closed_ = true;
    }
    filled_.notify_one();
  }

  /// From the writer: waits for messages and takes them all. Empty: the queue is closed.
  [[nodiscard]] std::vector<Message> take() {
    std::unique_lock lock{mutex_};
    filled_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
    return std::exchange(waiting_, {});
  }

  /// From the writer: `size` bytes are written or given up.
  void done(std::size_t size) {
    std::vector<std::function<void()>> due;
    {
      const std::lock_guard lock{mutex_};
      bytes_ -= size;
      std::erase_if(notices_, [&](Notice& notice) {
        if (bytes_ > notice.level) return false;
        due.push_back(std::move(notice.call));
        return true;
      });
    }
    for (const auto& call : due) call();
  }

  /// Put and not yet done.
  [[nodiscard]] std::size_t bytes() const {
    const std::lock_guard lock{mutex_};
    return bytes_;
  }

  /// Calls `notice` once, as soon as no more than `level` bytes are left: now, or later from the writer's thread.
  void when_at_most(std::size_t level, std::function<void()> notice) {
    {
      const std::lock_guard lock{mutex_};
      if (bytes_ > level) {
        notices_.push_back({level, std::move(notice)});
        return;
      }
    }
    notice();
  }

 private:
  struct Notice {
    std::size_t level;
    std::function<void()> call;
  };
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::vector<Message> waiting_;
  std::size_t bytes_ = 0;
  std::vector<Notice> notices_;
  bool closed_ = false;
};

}  // namespace torchup
