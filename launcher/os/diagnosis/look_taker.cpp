#include "launcher/os/diagnosis/look_taker.hpp"

#include <fmt/format.h>

#include <chrono>
#include <system_error>
#include <utility>

namespace torchup {
namespace {

/// A look ends at once when it is closed, but for a read in the kernel.
constexpr Duration close_limit = std::chrono::seconds{2};

/// To the loop. Shared, because a std::function must be copyable.
template <class Taken>
void tell(const LoopPost& post, std::function<void(Taken)> listener, std::optional<Taken> taken) {
  if (!taken) return;
  auto result = std::make_shared<Taken>(*std::move(taken));
  post([listener = std::move(listener), result = std::move(result)] { listener(std::move(*result)); });
}

}  // namespace

LookTaker::LookTaker(asio::io_context& loop, Listener listener, std::string stack_program)
    : shared_{std::make_shared<Shared>(loop, std::move(listener), std::move(stack_program))} {}

LookTaker::~LookTaker() {
  shared_->post.cut();
  shared_->mail.close();
  if (!thread_.joinable()) return;
  bool done = false;
  {
    std::unique_lock lock{shared_->mutex};
    shared_->closing = true;
    shared_->wake.notify_all();
    done = shared_->wake.wait_for(lock, close_limit, [this] { return !shared_->busy; });
  }
  if (done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

Result<> LookTaker::take(LookOrder order) { return add({std::move(order), false}); }

Result<> LookTaker::take_arrivals(LookOrder order) { return add({std::move(order), true}); }

Result<> LookTaker::add(Order order) {
  {
    const std::lock_guard lock{shared_->mutex};
    if (shared_->orders.size() == looks_waiting_max) {
      return fail(errc::limit_exceeded,
                  fmt::format("{} looks at the workers wait for one that is not done yet; no more "
                              "are taken until it is",
                              looks_waiting_max));
    }
    shared_->orders.push_back(std::move(order));
  }
  shared_->wake.notify_all();
  if (thread_.joinable()) return {};
  try {
    thread_ = std::thread{[shared = shared_] { run(shared); }};
  } catch (const std::system_error& error) {
    const std::lock_guard lock{shared_->mutex};
    shared_->orders.clear();
    return system_error(error.code().value(),
                        "no new thread to look at workers with (the limit of processes: ulimit -u, or pids.max of the "
                        "cgroup)");
  }
  return {};
}

void LookTaker::run(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock{shared->mutex};
  while (true) {
    shared->wake.wait(lock, [&] { return shared->closing || !shared->orders.empty(); });
    if (shared->closing) return;
    Order order = std::move(shared->orders.front());
    shared->orders.pop_front();
    shared->busy = true;
    lock.unlock();
    perform(shared, std::move(order));
    lock.lock();
    shared->busy = false;
    shared->wake.notify_all();
  }
}

void LookTaker::perform(const std::shared_ptr<Shared>& shared, Order order) {
  LocalLook look{std::move(order.order), {shared->mail, shared->post, shared->stack_program}};
  if (order.arrivals_only) {
    tell(shared->post, shared->listener.arrived, look.take_arrivals());
  } else {
    tell(shared->post, shared->listener.taken, look.take());
  }
}

}  // namespace torchup
