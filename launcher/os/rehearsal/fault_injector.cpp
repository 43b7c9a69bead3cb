#include "launcher/os/rehearsal/fault_injector.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <csignal>
#include <utility>

#include "launcher/os/rehearsal/node_fault.hpp"

namespace torchup {
namespace {

constexpr const char* no_worker = "its worker is gone, or runs as another user";

}  // namespace

FaultInjector::FaultInjector(asio::io_context& loop, const Guarded& guarded, Hooks hooks)
    : loop_{loop}, guarded_{guarded}, hooks_{std::move(hooks)}, cut_timer_{loop} {}

void FaultInjector::perform(const InjectFault& action) {
  switch (action.inject.action.kind) {
    case FaultKind::kill_rank:
      return kill(action);
    case FaultKind::stop_rank:
    case FaultKind::slow_rank:
      return hold(action);
    case FaultKind::kill_node:
    case FaultKind::stop_node:
      of_node_.push_back(action);
      return strike();
    case FaultKind::cut_node:
      return cut(action);
    case FaultKind::leave_node:  // the agent machine's own
      return;
  }
}

void FaultInjector::answer(const InjectFault& action, std::string why) {
  asio::post(loop_, [this, fault = action.inject.fault, why = std::move(why)] { hooks_.answer({fault, why}); });
}

void FaultInjector::kill(const InjectFault& action) {
  const bool done = hooks_.signal(action.inject.local_rank, action.pid, action.inject.action.signal);
  answer(action, done ? "" : no_worker);
}

void FaultInjector::hold(const InjectFault& action) {
  const ScriptAction& wanted = action.inject.action;
  const auto held = std::make_shared<Held>(loop_, action.inject.local_rank, action.pid);
  if (!hooks_.signal(held->local_rank, held->pid, SIGSTOP)) {
    return answer(action, no_worker);
  }
  answer(action);
  held->stopped = true;
  held->stops = wanted.lasts;
  if (wanted.kind == FaultKind::slow_rank) {
    held->stops = slow_stopped_part(wanted.by_percent);
    held->runs = slow_period - held->stops;
  }
  const TimePoint now = std::chrono::steady_clock::now();
  held->ends = now + wanted.lasts;
  held_.push_back(held);
  wait(held, now + std::min(held->stops, wanted.lasts));
}

/// What has run out in the turn in which it was let go does nothing any more.
void FaultInjector::wait(const std::shared_ptr<Held>& held, TimePoint until) {
  held->timer.expires_at(until);
  held->timer.async_wait([this, weak = std::weak_ptr{held}](boost::system::error_code error) {
    const auto still = weak.lock();
    if (!error && still) turn(still);
  });
}

/// From stopped to running and back, until the end; or until the worker is gone.
void FaultInjector::turn(const std::shared_ptr<Held>& held) {
  const TimePoint now = std::chrono::steady_clock::now();
  const bool over = held->runs == Duration{0} || now >= held->ends;
  if (held->stopped) {
    let_run(*held);
  } else if (!over) {
    held->stopped = hooks_.signal(held->local_rank, held->pid, SIGSTOP);
  }
  const bool gone = !hooks_.signal(held->local_rank, held->pid, 0);
  if (gone || (over && !held->stopped)) {
    std::erase(held_, held);
    return;
  }
  // From the moment at which this was due: what comes late does not make the period longer.
  wait(held, std::max(held->timer.expiry() + (held->stopped ? held->stops : held->runs), now));
}

/// Unless another fault stops it as well.
void FaultInjector::let_run(Held& held) {
  held.stopped = false;
  const bool by_another =
      std::ranges::any_of(held_, [&](const auto& other) { return other->stopped && other->pid == held.pid; });
  if (!by_another) static_cast<void>(hooks_.signal(held.local_rank, held.pid, SIGCONT));
}

void FaultInjector::release() {
  for (const auto& held : held_) {
    if (held->stopped) static_cast<void>(hooks_.signal(held->local_rank, held->pid, SIGCONT));
  }
  held_.clear();
}

/// The next one, unless one is under way.
void FaultInjector::strike() {
  if (helper_ || of_node_.empty()) return;
  const InjectFault action = std::move(of_node_.front());
  of_node_.pop_front();
  auto started = strike_node(guarded_.outer, guarded_.cgroup_tag, action.inject.action.lasts);
  if (!started) {
    answer(action, started.error().message());
    return strike();
  }
  helper_.emplace(Helper{started->pid, asio::posix::stream_descriptor{loop_, started->pidfd.release()}});
  helper_->watch.async_wait(asio::posix::descriptor_base::wait_read, [this](boost::system::error_code error) {
    if (error) return;
    helper_.reset();
    strike();
  });
}

std::optional<pid_t> FaultInjector::helper() const { return helper_ ? std::optional{helper_->pid} : std::nullopt; }

void FaultInjector::cut(const InjectFault& action) {
  if (!hooks_.cut(true)) return answer(action, "this node has no link to a coordinator that could be cut");
  answer(action);
  cut_ends_ = std::max(cut_ends_, std::chrono::steady_clock::now() + action.inject.action.lasts);
  cut_timer_.expires_at(cut_ends_);
  cut_timer_.async_wait([this](boost::system::error_code error) {
    if (!error && std::chrono::steady_clock::now() >= cut_ends_) static_cast<void>(hooks_.cut(false));
  });
}

}  // namespace torchup
