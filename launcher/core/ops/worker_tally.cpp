#include "launcher/core/ops/worker_tally.hpp"

#include <algorithm>
#include <variant>

namespace torchup {
namespace {

double seconds(std::int64_t ns) { return static_cast<double>(std::max<std::int64_t>(ns, 0)) / 1e9; }

}  // namespace

WorkerTally::WorkerTally(int local_world_size) : workers_(static_cast<std::size_t>(std::max(local_world_size, 0))) {
  for (std::size_t i = 0; i < workers_.size(); ++i) workers_[i].numbers.local_rank = LocalRank{static_cast<int>(i)};
}

void WorkerTally::record(const EventBody& event) {
  std::visit([this](const auto& happened) { on(happened); }, event);
}

WorkerTally::Worker* WorkerTally::find(LocalRank local_rank) {
  const auto index = static_cast<std::size_t>(local_rank.value());
  return local_rank.value() >= 0 && index < workers_.size() ? &workers_[index] : nullptr;
}

void WorkerTally::on(const event::WorkerStarted& event) {
  Worker* const worker = find(event.worker.local_rank);
  if (!worker) return;
  if (worker->pid != 0) end(*worker);
  worker->pid = event.worker.pid;
  worker->numbers.rank = event.worker.rank;
  worker->numbers.up = true;
  worker->numbers.step.reset();
  ++worker->numbers.starts;
}

void WorkerTally::on(const event::WorkerKept& event) {
  if (Worker* const worker = find(event.worker.local_rank)) worker->numbers.rank = event.worker.rank;
}

void WorkerTally::on(const event::WorkerExited& event) {
  ++exits_[std::string{worker_end_text(event.end)}];
  Worker* const worker = find(event.worker.local_rank);
  if (!worker) return;
  // Its page was read once more behind the last look.
  if (event.steps) worker->numbers.steps = worker->steps_before + std::max(worker->beats, event.steps->beats);
  if (event.steps) worker->numbers.step = event.steps->last_step;
  end(*worker);
}

void WorkerTally::on(const event::WorkerAbandoned& event) {
  if (Worker* const worker = find(event.worker.local_rank)) end(*worker);
}

void WorkerTally::end(Worker& worker) {
  worker.pid = 0;
  worker.numbers.up = false;
  worker.numbers.resident_bytes = 0;
  worker.steps_before = worker.numbers.steps;
  worker.waited_before_s = worker.numbers.waited_s;
  worker.cpu_before_s = worker.numbers.cpu_s;
  worker.beats = 0;
  worker.waited_seen_ns = 0;
}

void WorkerTally::look(std::span<const StepSample> samples) {
  for (const StepSample& sample : samples) {
    Worker* const worker = find(sample.local_rank);
    if (!worker || worker->pid == 0 || !sample.progress || sample.progress->beats <= worker->beats) continue;
    const WorkerProgress& progress = *sample.progress;
    worker->beats = progress.beats;
    worker->waited_seen_ns = progress.total_waited_ns > 0
                                 ? progress.total_waited_ns
                                 : worker->waited_seen_ns + std::max<std::int64_t>(progress.waited_ns, 0);
    worker->numbers.step = progress.step;
    worker->numbers.steps = worker->steps_before + progress.beats;
    worker->numbers.waited_s =
        std::max(worker->numbers.waited_s, worker->waited_before_s + seconds(worker->waited_seen_ns));
  }
}

std::vector<WorkerTally::Process> WorkerTally::living() const {
  std::vector<Process> processes;
  for (const Worker& worker : workers_) {
    if (worker.pid != 0) processes.push_back({worker.numbers.local_rank, worker.pid});
  }
  return processes;
}

void WorkerTally::used(const Process& process, double cpu_s, std::uint64_t resident_bytes) {
  Worker* const worker = find(process.local_rank);
  if (!worker || worker->pid != process.pid) return;
  worker->numbers.cpu_s = std::max(worker->numbers.cpu_s, worker->cpu_before_s + cpu_s);
  worker->numbers.resident_bytes = resident_bytes;
}

std::vector<WorkerNumbers> WorkerTally::workers() const {
  std::vector<WorkerNumbers> numbers;
  for (const Worker& worker : workers_) {
    if (worker.numbers.starts > 0) numbers.push_back(worker.numbers);
  }
  return numbers;
}

}  // namespace torchup
