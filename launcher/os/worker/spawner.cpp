#include "launcher/os/worker/spawner.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <system_error>
#include <utility>

namespace torchup {
namespace {

constexpr std::string_view no_thread_text =
    "no new thread to start workers with (the limit of processes: ulimit -u, or pids.max of the cgroup)";

}  // namespace

Spawner::Spawner(asio::io_context& loop)
    : loop_{loop}, most_lanes_{std::clamp<std::size_t>(std::thread::hardware_concurrency() + 1, 2, 4)} {
  static_cast<void>(add_lane());  // early: it is made while the attempt's directories are
}

Result<> Spawner::add_lane() {
  auto work = std::make_shared<Work>();
  try {
    lanes_.push_back({std::thread{[&loop = loop_, shared = shared_, work] { run(loop, *shared, *work); }}, work});
  } catch (const std::system_error& error) {
    return system_error(error.code().value(), std::string{no_thread_text});
  }
  return {};
}

Spawner::~Spawner() {
  std::vector<bool> stuck;
  {
    const std::lock_guard lock{shared_->mutex};
    shared_->closing = true;
    for (const Lane& lane : lanes_) stuck.push_back(lane.work->busy);
  }
  shared_->wake.notify_all();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    if (stuck[i]) {
      lanes_[i].thread.detach();
    } else {
      lanes_[i].thread.join();
    }
  }
}

void Spawner::start(ChildRequest request, Handler handler) {
  if (lanes_.empty()) {
    if (auto made = add_lane(); !made) {
      asio::post(loop_, [handler = std::move(handler), error = made.error()] { handler(error); });
      return;
    }
  }
  bool wanted = false;
  {
    const std::lock_guard lock{shared_->mutex};
    shared_->orders.push_back({std::move(request), std::move(handler)});
    wanted = ++shared_->unfinished > lanes_.size();
  }
  shared_->wake.notify_one();
  if (wanted && lanes_.size() < most_lanes_) static_cast<void>(add_lane());
}

void Spawner::end_births() {
  for (const Lane& lane : lanes_) lane.work->birth.end();
}

void Spawner::allow_births() {
  for (const Lane& lane : lanes_) lane.work->birth.allow();
}

void Spawner::run(asio::io_context& loop, Shared& shared, Work& work) {
  std::unique_lock lock{shared.mutex};
  while (true) {
    shared.wake.wait(lock, [&] { return shared.closing || !shared.orders.empty(); });
    if (shared.closing) return;
    Order order = std::move(shared.orders.front());
    shared.orders.pop_front();
    const std::uint64_t number = shared.taken++;
    work.busy = true;
    lock.unlock();
    // Shared, because a std::function must be copyable.
    auto child = std::make_shared<Result<ChildProcess>>(start_child(order.request, &work.birth));
    // Our copies of the worker's pipes go now: a pipe ends only when its last writer has closed it.
    order.request = {};
    lock.lock();
    work.busy = false;
    --shared.unfinished;
    if (shared.closing) return;
    shared.answers[number] = [handler = std::move(order.handler), child] { handler(std::move(*child)); };
    for (auto answer = shared.answers.begin(); answer != shared.answers.end() && answer->first == shared.told;
         ++shared.told) {
      asio::post(loop, std::move(answer->second));
      answer = shared.answers.erase(answer);
    }
  }
}

}  // namespace torchup
