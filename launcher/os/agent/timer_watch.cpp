#include "launcher/os/agent/timer_watch.hpp"

#include <fmt/format.h>

#include <utility>

#include "launcher/core/text/signals.hpp"
#include "launcher/os/machine/descendants.hpp"

namespace torchup {

TimerWatch::TimerWatch(asio::io_context& loop, const std::string& path, const WorkerGroup& workers, Listener listener)
    : workers_{workers}, listener_{std::move(listener)} {
  if (path.empty()) return;
  watchdog_.emplace(
      loop, path,
      [this](std::string text) {
        listener_.said({LogLevel::warning, "watchdog", std::move(text)});
      },
      [this](pid_t pid, std::string scope, int number) { expired(pid, std::move(scope), number); });
}

void TimerWatch::open() {
  if (!watchdog_) return;
  if (auto ready = watchdog_->open(); !ready) listener_.record(event::Warning{ready.error().message()});
}

void TimerWatch::close() {
  if (watchdog_) watchdog_->close();
  early_.clear();
}

void TimerWatch::worker_gone(std::int64_t pid) {
  if (watchdog_) watchdog_->forget(pid);
}

std::optional<TimerExpired> TimerWatch::expired_before(const WorkerStarted& started) {
  auto found = early_.extract(static_cast<pid_t>(started.pid));
  if (found.empty()) return std::nullopt;
  found.mapped().local_rank = started.local_rank;
  return std::move(found.mapped());
}

void TimerWatch::expired(pid_t pid, std::string scope, int number) {
  if (const auto owner = workers_.owner_of(pid)) {
    return listener_.tell(TimerExpired{*owner, pid, std::move(scope), number});
  }
  for (const pid_t ancestor : ancestry(pid)) early_[ancestor] = TimerExpired{LocalRank{0}, pid, scope, number};
  listener_.record(
      event::Warning{fmt::format("watchdog: process {}, which no worker answers for, did not come out of its timer's "
                                 "scope in time: sent {}",
                                 pid, signal_text(number)),
                     std::move(scope)});
}

}  // namespace torchup
