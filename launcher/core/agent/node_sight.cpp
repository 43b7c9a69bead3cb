#include "launcher/core/agent/node_sight.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <variant>

namespace torchup {
namespace {

/// The worker's word: a time of the future counts as now.
Duration age_of(std::int64_t time_ns, TimePoint now) {
  const auto then = std::chrono::nanoseconds{std::max<std::int64_t>(time_ns, 0)};
  return std::max(Duration{0}, now.time_since_epoch() - std::chrono::duration_cast<Duration>(then));
}

/// Looks that come faster than this add no mark: the window holds few, however often somebody looks.
constexpr Duration marks_apart = std::chrono::milliseconds{500};

}  // namespace

NodeSight::NodeSight(int local_world_size) : workers_(static_cast<std::size_t>(std::max(local_world_size, 0))) {}

void NodeSight::record(const EventBody& event) {
  std::visit([this](const auto& happened) { on(happened); }, event);
}

NodeSight::Worker* NodeSight::find(LocalRank local_rank) {
  const auto index = static_cast<std::size_t>(local_rank.value());
  return local_rank.value() >= 0 && index < workers_.size() ? &workers_[index] : nullptr;
}

void NodeSight::begin(LocalRank local_rank, std::uint64_t counted) {
  if (Worker* const worker = find(local_rank)) *worker = {.life = Worker::Life::lives, .counted = counted};
}

/// One that counts backwards is another.
void NodeSight::count(Worker& worker, std::uint64_t beats) {
  beats_ += beats >= worker.counted ? beats - worker.counted : beats;
  if (beats != worker.counted) worker.hung = false;
  worker.counted = beats;
}

void NodeSight::end(LocalRank local_rank, Worker::Life life) {
  if (Worker* const worker = find(local_rank)) worker->life = life;
}

void NodeSight::on(const event::RoundCompleted&) {
  for (Worker& worker : workers_) worker = {.counted = worker.counted};
  marks_.clear();
}
void NodeSight::on(const event::WorkerStarted& event) { begin(event.worker.local_rank, 0); }
void NodeSight::on(const event::WorkerKept& event) {
  if (const Worker* const worker = find(event.worker.local_rank)) begin(event.worker.local_rank, worker->counted);
}
void NodeSight::on(const event::WorkerAbandoned& event) { end(event.worker.local_rank, Worker::Life::unknown); }
void NodeSight::on(const event::SpawnFailed& event) { end(event.worker.local_rank, Worker::Life::failed); }
void NodeSight::on(const event::WorkerExited& event) {
  using Life = Worker::Life;
  const Life life = event.end == WorkerEnd::succeeded ? Life::succeeded
                    : event.end == WorkerEnd::failed  ? Life::failed
                                                      : Life::terminated;
  end(event.worker.local_rank, life);
}
void NodeSight::on(const event::WorkerHung& event) {
  if (Worker* const worker = find(event.worker.local_rank)) worker->hung = true;
}
void NodeSight::on(const event::HangOver&) {
  for (Worker& worker : workers_) worker.hung = false;
}

void NodeSight::look(std::span<const StepSample> samples, TimePoint now) {
  bool any_step = false;
  for (const StepSample& sample : samples) {
    Worker* const worker = find(sample.local_rank);
    if (!worker || worker->life != Worker::Life::lives) continue;
    worker->opened = worker->opened || sample.opened || sample.progress.has_value();
    // A kept worker's page tells of steps of the round before, until it ends one of this.
    if (!sample.progress || (!worker->progress && sample.progress->beats == worker->counted)) continue;
    count(*worker, sample.progress->beats);
    worker->progress = sample.progress;
    any_step = true;
  }
  if (marks_.empty() ? !any_step : now < marks_.back().at + marks_apart) return;
  marks_.push_back({now, beats_});
  while (marks_.size() > 2 && marks_[1].at + step_rate_window <= now) marks_.pop_front();
}

char NodeSight::letter(const Worker& worker, TimePoint now) {
  switch (worker.life) {
    case Worker::Life::absent:
      return '-';
    case Worker::Life::succeeded:
      return 'd';
    case Worker::Life::failed:
      return 'x';
    case Worker::Life::terminated:
      return 't';
    case Worker::Life::unknown:
      return '?';
    case Worker::Life::lives:
      break;
  }
  if (worker.hung) return 'h';
  if (!worker.progress) return worker.opened ? 's' : 'r';
  const std::int64_t waiting = worker.progress->waiting_since_ns;
  return waiting != 0 && age_of(waiting, now) > long_wait ? 'w' : 'r';
}

/// Of one worker, as the mean of those that report.
std::int64_t NodeSight::milli_steps_per_second() const {
  const auto reporting =
      std::ranges::count_if(workers_, [](const Worker& worker) { return worker.progress.has_value(); });
  if (marks_.size() < 2 || reporting == 0) return 0;
  const std::chrono::duration<double> time = marks_.back().at - marks_.front().at;
  const auto steps = static_cast<double>(marks_.back().beats - marks_.front().beats);
  if (time.count() <= 0) return 0;
  constexpr double most = 1e12;  // of beats that a stranger counts
  return std::llround(std::min(steps * 1000 / (time.count() * static_cast<double>(reporting)), most));
}

NodeReport NodeSight::report(TimePoint now) const {
  NodeReport report;
  std::int64_t newest_ns = 0;
  for (const Worker& worker : workers_) {
    report.ranks.push_back(letter(worker, now));
    if (!worker.progress) continue;
    const std::int64_t step = worker.progress->step;
    if (!report.steps) report.steps = StepReport{.least = step, .most = step};
    report.steps->least = std::min(report.steps->least, step);
    report.steps->most = std::max(report.steps->most, step);
    newest_ns = std::max(newest_ns, worker.progress->ended_ns);
  }
  if (report.steps) {
    report.steps->age = age_of(newest_ns, now);
    report.steps->milli_per_second = milli_steps_per_second();
  }
  report.beats = beats_;
  return report;
}

}  // namespace torchup
