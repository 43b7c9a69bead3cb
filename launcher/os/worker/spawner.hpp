#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "launcher/os/worker/child_process.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// The threads that start workers. They live as long as the agent, for a child's parent-death signal is bound to the
/// thread that made it; and one may stand still in an exec on a stalled file system, which the loop must not.
///
/// Several, because a thread sleeps while its child executes: it wakes on the child's processor, behind the child,
/// while other processors have nothing to do. A thread is made when a child waits and no thread is free, up to one more
/// than there are processors and four in all; a job of one worker has one. Where the system gives no more threads,
/// those that are there do.
class Spawner {
 public:
  using Handler = std::function<void(Result<ChildProcess>)>;

  explicit Spawner(asio::io_context& loop);
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;
  /// The threads' end kills all children that still live. A thread that stands still in an exec is left behind.
  ~Spawner();

  /// Starts a child; the handlers are called on the loop in the order of these calls. Where the system gives not one
  /// thread, the handler gets its error.
  void start(ChildRequest request, Handler handler);
  /// SIGKILL to the children that are being started, at their birth to those that come next, until `allow_births`.
  /// Their handlers get them all the same.
  void end_births();
  void allow_births();

 private:
  struct Order {
    ChildRequest request;
    Handler handler;
  };
  /// What the threads share with us; they may outlive us.
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Order> orders;
    bool closing = false;
    std::size_t unfinished = 0;  ///< orders that wait or are under way
    std::uint64_t taken = 0;
    std::uint64_t told = 0;
    std::map<std::uint64_t, std::function<void()>> answers;  ///< by order; they wait for that of an earlier order
  };
  /// What a thread and we share; it may outlive us.
  struct Work {
    bool busy = false;  ///< it starts a child now; guarded by Shared::mutex
    ChildBirth birth;
  };
  struct Lane {
    std::thread thread;
    std::shared_ptr<Work> work;
  };
  [[nodiscard]] Result<> add_lane();
  static void run(asio::io_context& loop, Shared& shared, Work& work);

  asio::io_context& loop_;
  const std::size_t most_lanes_;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::vector<Lane> lanes_;
};

}  // namespace torchup
