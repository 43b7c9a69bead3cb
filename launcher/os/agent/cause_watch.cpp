#include "launcher/os/agent/cause_watch.hpp"

#include <chrono>
#include <utility>
#include <vector>

#include "launcher/core/record/error_file.hpp"

namespace torchup {

CauseWatch::CauseWatch(asio::io_context& loop, const WorkerGroup& workers, Output& output, Listener listener)
    : loop_{loop}, workers_{workers}, output_{output}, listener_{std::move(listener)} {}

bool CauseWatch::is_told(const RaisedWorker& worker) const {
  const auto told = told_.find(worker.pid);
  return told != told_.end() && told->second == worker.raised_at_ns;
}

Task<> CauseWatch::look() {
  const TimePoint now = std::chrono::steady_clock::now();
  if (now - looked_at_ < cause_look_interval) co_return;
  looked_at_ = now;
  const TimePoint until = now + last_words_limit;  // of all files together: the failure that waits for this is one
  const std::vector<RaisedWorker> raised = workers_.raised();
  for (const RaisedWorker& worker : raised) {
    if (is_told(worker)) continue;
    if (std::chrono::steady_clock::now() >= until) break;
    std::string path = listener_.error_file_of(worker.local_rank);
    const LastWords words = co_await output_.read_last_words(path, until - std::chrono::steady_clock::now());
    // The mark comes first, the file a moment later; whether it is of another's end only its words tell.
    if (!words.error || is_told(worker)) continue;
    told_[worker.pid] = worker.raised_at_ns;
    ExceptionSeen seen{.local_rank = worker.local_rank, .raised_at_ns = worker.raised_at_ns};
    seen.time_us = words.error->time_us;
    seen.message = words.error->traceback;
    seen.lines = reported_lines(words.error->traceback);
    seen.error_file = std::move(path);
    listener_.tell(std::move(seen));
  }
}

void CauseWatch::seek() {
  const bool seeks = seeks_until_.has_value();
  seeks_until_ = std::chrono::steady_clock::now() + cause_patience;
  if (!seeks) spawn(loop_, "seek the cause", look_again());
}

Task<> CauseWatch::look_again() {
  Timer timer{loop_};
  while (std::chrono::steady_clock::now() < *seeks_until_) {
    co_await look();
    timer.expires_after(cause_look_interval);
    co_await timer.async_wait();
  }
  seeks_until_.reset();
}

}  // namespace torchup
