#include "rendezvous/core/diagnosis/progress_tally.hpp"

#include <algorithm>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

Duration told(Duration duration) { return std::clamp(duration, Duration{0}, duration_max); }

Duration limit_by_gaps(const ProgressReport& report) {
  return std::max(hang_median_factor * told(report.median_gap), hang_longest_factor * told(report.longest_gap));
}

void remove_one(std::multiset<Duration>& durations, Duration duration) {
  if (const auto found = durations.find(duration); found != durations.end()) durations.erase(found);
}

}  // namespace

void ProgressTally::Reports::add(const ProgressReport& report) {
  silences.insert(told(report.silence));
  limits.insert(limit_by_gaps(report));
  progressed += report.progressed ? 1 : 0;
  ending += report.ending ? 1 : 0;
}

void ProgressTally::Reports::remove(const ProgressReport& report) {
  remove_one(silences, told(report.silence));
  remove_one(limits, limit_by_gaps(report));
  progressed -= report.progressed ? 1 : 0;
  ending -= report.ending ? 1 : 0;
}

void ProgressTally::add(const ProgressReport& report) {
  all_.add(report);
  if (report.watched) watched_.add(report);
}

void ProgressTally::remove(const ProgressReport& report) {
  all_.remove(report);
  if (report.watched) watched_.remove(report);
}

const ProgressTally::Reports& ProgressTally::counting(const HangTimeout& timeout) const {
  return !watched() && timeout.mode == HangTimeout::Mode::given ? all_ : watched_;
}

std::optional<Duration> ProgressTally::limit(const HangTimeout& timeout) const {
  const Reports& counted = counting(timeout);
  if (timeout.mode == HangTimeout::Mode::off || counted.silences.empty()) return std::nullopt;
  // Loading, compiling, the last save take as long as they take.
  const bool patient = counted.progressed == 0 || counted.ending > 0;
  if (timeout.mode == HangTimeout::Mode::given) {
    return patient ? timeout.start.value_or(std::max(hang_start_limit, timeout.silence)) : timeout.silence;
  }
  const Duration limit = std::max(hang_silence_min, *counted.limits.rbegin());
  return patient ? std::max(limit, hang_start_limit) : limit;
}

Duration ProgressTally::least_silence(const HangTimeout& timeout) const {
  const Reports& counted = counting(timeout);
  return counted.silences.empty() ? Duration{0} : *counted.silences.begin();
}

}  // namespace torchup
