#include "launcher/os/spawner.hpp"

#include <boost/asio/post.hpp>
#include <utility>

namespace torchup {

Spawner::Spawner(asio::io_context& loop)
    : thread_{[&loop, shared = shared_] { run(loop, *shared); }} {}

Spawner::~Spawner() {
  bool stuck = false;
  {
    const std::lock_guard lock{shared_->mutex};
    shared_->closing = true;
    stuck = shared_->busy;
  }
  shared_->wake.notify_one();
  if (stuck) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void Spawner::start(ChildRequest request, Handler handler) {
  {
    const std::lock_guard lock{shared_->mutex};
    shared_->orders.push_back({std::move(request), std::move(handler)});
  }
  shared_->wake.notify_one();
}

void Spawner::run(asio::io_context& loop, Shared& shared) {
  std::unique_lock lock{shared.mutex};
  while (true) {
    shared.wake.wait(lock, [&] { return shared.closing || !shared.orders.empty(); });
    if (shared.closing) return;
    Order order = std::move(shared.orders.front());
    shared.orders.pop_front();
    shared.busy = true;
    lock.unlock();
    auto child = start_child(order.request);
    // Our copies of the worker's pipes go now: a pipe ends only when its last writer has closed it.
    order.request = {};
    lock.lock();
    shared.busy = false;
    if (shared.closing) return;
    asio::post(loop, [handler = std::move(order.handler), result = std::move(child)]() mutable {
      handler(std::move(result));
    });
  }
}

}  // namespace torchup
