#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "launcher/os/child_process.hpp"
#include "rendezvous/net/asio.hpp"

namespace torchup {

/// The one thread that starts workers. It lives as long as the agent, for a child's parent-death signal is bound to the
/// thread that made it; and it may stand still in an exec on a stalled file system, which the loop must not.
class Spawner {
 public:
  using Handler = std::function<void(Result<ChildProcess>)>;

  explicit Spawner(asio::io_context& loop);
  Spawner(const Spawner&) = delete;
  Spawner& operator=(const Spawner&) = delete;
  /// Its thread's end kills all children that still live. A thread that stands still in an exec is left behind.
  ~Spawner();

  /// Starts children one after the other, in the order of the calls; `handler` is called on the loop.
  void start(ChildRequest request, Handler handler);

 private:
  struct Order {
    ChildRequest request;
    Handler handler;
  };
  /// What the thread shares with us; it may outlive us.
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Order> orders;
    bool closing = false;
    bool busy = false;
  };
  static void run(asio::io_context& loop, Shared& shared);

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
};

}  // namespace torchup
