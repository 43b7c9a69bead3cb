#include "launcher/core/agent/state_watch.hpp"

#include <chrono>

namespace torchup {
namespace {

double in_seconds(Duration duration) { return std::chrono::duration<double>{duration}.count(); }

}  // namespace

std::vector<EventBody> StateWatch::look(std::span<const StateSample> samples, TimePoint now) {
  std::vector<EventBody> findings;
  for (const StateSample& sample : samples) {
    Watched& worker = watched(sample);
    // One look may fall into our own stop and go; two in a row do not.
    worker.stopped_looks = sample.state == 'T' ? worker.stopped_looks + 1 : 0;
    if (worker.stopped_looks == 2) findings.emplace_back(event::WorkerStopped{sample.worker});
    if (stuck_timeout_ <= Duration{0}) continue;
    if (sample.state != 'D') {
      worker.stuck_since.reset();
      continue;
    }
    event::WorkerUninterruptible sleeps{sample.worker, role_, 0, in_seconds(stuck_timeout_), false};
    if (!worker.stuck_since) {
      worker.stuck_since = now;
      findings.emplace_back(std::move(sleeps));
    } else if (now - *worker.stuck_since >= stuck_timeout_ && !worker.stuck_said) {
      worker.stuck_said = true;
      sleeps.lasted_s = in_seconds(now - *worker.stuck_since);
      sleeps.stuck = true;
      findings.emplace_back(std::move(sleeps));
    }
  }
  return findings;
}

StateWatch::Watched& StateWatch::watched(const StateSample& sample) {
  const auto index = static_cast<std::size_t>(sample.worker.local_rank.value());
  if (workers_.size() <= index) workers_.resize(index + 1);
  Watched& worker = workers_[index];
  if (worker.pid != sample.worker.pid) {
    worker = {};
    worker.pid = sample.worker.pid;
  }
  return worker;
}

}  // namespace torchup
