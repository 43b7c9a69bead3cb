#include "launcher/core/state_watch.hpp"

#include <cstdio>

namespace torchup {
namespace {

/// As torchrun writes it.
std::string rounded_seconds(Duration duration) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1fs", std::chrono::duration<double>{duration}.count());
  return text;
}

}  // namespace

std::vector<StateFinding> StateWatch::look(std::span<const StateSample> samples, TimePoint now) {
  std::vector<StateFinding> findings;
  for (const StateSample& sample : samples) {
    Watched& worker = watched(sample);
    // One look may fall into our own stop and go; two in a row do not.
    worker.stopped_looks = sample.state == 'T' ? worker.stopped_looks + 1 : 0;
    if (worker.stopped_looks == 2) {
      findings.push_back({false, "worker with local rank " + std::to_string(sample.local_rank.value()) +
                                     " is stopped; kill -CONT " + std::to_string(sample.pid) + " lets it go on"});
    }
    if (stuck_timeout_ <= Duration{0}) continue;
    if (sample.state != 'D') {
      worker.stuck_since.reset();
      continue;
    }
    const std::string who = "[" + role_ + "] Worker pid=" + std::to_string(sample.pid);
    if (!worker.stuck_since) {
      worker.stuck_since = now;
      findings.push_back(
          {false, who + " entered uninterruptible sleep (D-state); will mark UNHEALTHY if it remains for " +
                      rounded_seconds(stuck_timeout_) + "."});
    } else if (now - *worker.stuck_since >= stuck_timeout_ && !worker.stuck_said) {
      worker.stuck_said = true;
      findings.push_back({true, who + " stuck in uninterruptible sleep (D-state) for " +
                                    rounded_seconds(now - *worker.stuck_since) +
                                    " (>= " + rounded_seconds(stuck_timeout_) +
                                    "); marking worker group UNHEALTHY and disabling restarts."});
    }
  }
  return findings;
}

StateWatch::Watched& StateWatch::watched(const StateSample& sample) {
  const auto index = static_cast<std::size_t>(sample.local_rank.value());
  if (workers_.size() <= index) workers_.resize(index + 1);
  Watched& worker = workers_[index];
  if (worker.pid != sample.pid) {
    worker = {};
    worker.pid = sample.pid;
  }
  return worker;
}

}  // namespace torchup
