#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "launcher/os/io/loop_post.hpp"
#include "launcher/os/io/loop_wait.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/writer_thread.hpp"

namespace torchup {

/// A disk that answers later than that is taken for dead: what waited for it goes on with an error.
inline constexpr Duration disk_limit = std::chrono::seconds{10};
/// How long a job's end waits for its disk in all.
inline constexpr Duration last_disk_limit = std::chrono::seconds{15};

/// A thread for what may wait for a disk. On the loop; work is done in the order in which it is given, and shares
/// nothing with the loop but what it owns.
class DiskThread {
 public:
  explicit DiskThread(asio::io_context& loop) : loop_{loop}, post_{loop} {}
  DiskThread(const DiskThread&) = delete;
  DiskThread& operator=(const DiskThread&) = delete;
  ~DiskThread() { post_.cut(); }

  /// Never blocks. `bytes` are counted until the work is done.
  void call(std::function<void()> work, std::size_t bytes = 0) { thread_.put(std::move(work), bytes); }

  /// Runs `work` and waits for its result without stopping the loop. Nothing when it takes longer than `limit`: then it
  /// may still be running.
  template <class T>
  Task<std::optional<T>> ask(std::function<T()> work, Duration limit = disk_limit) {
    const auto waiting =
        std::make_shared<LoopWait<T>>(loop_, std::min(std::chrono::steady_clock::now() + limit, last_answer_));
    call([post = post_, asker = std::weak_ptr{waiting}, work = std::move(work)] {
      auto answer = std::make_shared<T>(work());
      post([asker, answer] {
        if (const auto still_there = asker.lock()) still_there->end(std::move(*answer));
      });
    });
    co_await waiting->timer.async_wait();
    co_return std::move(waiting->answer);
  }

  /// Nothing is waited for any longer than until `time`, in `ask` and `replace_file`: a dead disk does not take its
  /// limit again for each question.
  void answer_by(TimePoint time) { last_answer_ = time; }

  /// Waits until everything given is done, at most `limit`. True: it is.
  Task<bool> idle(Duration limit);

  /// replace_file_now. Errors: its own; timed_out after disk_limit.
  Task<Result<>> replace_file(std::string path, std::string content);
  /// overwrite_file_now. Errors: likewise.
  Task<Result<>> overwrite_file(std::string path, std::string content);

  [[nodiscard]] std::size_t queued_bytes() const { return thread_.queued_bytes(); }
  /// Calls `notice` once, later on the loop, when at most `level` bytes are queued.
  void when_at_most(std::size_t level, std::function<void()> notice);

  /// The way back to the loop for work that has something to tell.
  [[nodiscard]] const LoopPost& post() const { return post_; }

 private:
  using Write = Result<> (*)(const std::string& path, const std::string& content);
  Task<Result<>> write_file(Write write, std::string path, std::string content);

  asio::io_context& loop_;
  LoopPost post_;
  WriterThread thread_;
  TimePoint last_answer_ = TimePoint::max();
};

/// What to say where a disk was waited for in vain.
[[nodiscard]] inline Error disk_is_dead(std::string context) {
  return Error{make_error_code(boost::system::errc::timed_out), std::move(context)};
}

}  // namespace torchup
