#include "launcher/os/agent/incident_recorder.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "launcher/core/agent/save_watch.hpp"
#include "launcher/core/diagnosis/python_stack.hpp"
#include "launcher/core/record/exit_report.hpp"
#include "launcher/os/output/circumstances.hpp"

namespace torchup {
namespace {

constexpr std::size_t bystanders_max = 1'024;

}  // namespace

struct IncidentRecorder::Open {
  Incident incident;
  std::string directory;
  std::vector<std::string> recent_lines;  ///< of the root cause
  std::shared_ptr<DeathBaseline> baseline;
};

IncidentRecorder::IncidentRecorder(asio::io_context& loop, DiskThread& disk, std::string run_id, std::string host,
                                   bool writes_files)
    : disk_{disk}, looking_{loop}, run_id_{std::move(run_id)}, host_{std::move(host)}, writes_files_{writes_files} {}

void IncidentRecorder::attempt_started() {
  open_.reset();
  if (baseline_) baseline_->next_attempt();
  baseline_ = std::make_shared<DeathBaseline>();
  looking_.call([baseline = baseline_] { baseline->count(); });
}

void IncidentRecorder::worker_failed(const WorkerFailure& failure, const std::string& ended_for,
                                     const WorkerRemains& remains, const AttemptOutput& attempt,
                                     const std::string& attempt_name, const std::vector<LivingWorker>& living,
                                     std::vector<BystanderState> ended, TimePoint now) {
  if (!open_) {
    open_ = std::make_shared<Open>();
    open_->baseline = baseline_;
    if (writes_files_) open_->directory = attempt.directory();
    open_->incident.run_id = run_id_;
    open_->incident.host = host_;
    open_->incident.attempt = attempt_name;
    ended.resize(std::min(ended.size(), bystanders_max));
    open_->incident.others = std::move(ended);
    for (const LivingWorker& worker : living) {
      if (open_->incident.others.size() == bystanders_max) break;
      BystanderState other;
      other.rank = worker.rank;
      other.local_rank = worker.local_rank;
      other.pid = worker.pid;
      other.state = process_state(worker.pid);
      other.silent_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(now - attempt.last_output(worker.local_rank)).count();
      if (worker.progress) other.progress = progress_text(*worker.progress, now);
      open_->incident.others.push_back(std::move(other));
    }
  }
  Incident& incident = open_->incident;
  incident.failures.push_back(failure);
  if (root_cause(incident.failures) + 1 != incident.failures.size()) return;
  const auto& progress = remains.progress;
  incident.last_step = progress ? std::optional{progress->step} : std::nullopt;
  incident.progress = progress ? progress_text(*progress, now) : "";
  const WorkerFiles& files = attempt.files(failure.local_rank);
  incident.stdout_log = files.stdout_log;
  incident.stderr_log = files.stderr_log;
  incident.evidence.last_lines = attempt.tail(failure.local_rank);
  incident.evidence.ended_for = ended_for;
  incident.evidence.python_stack = crash_lines(parse_python_stack(remains.sheet));
  open_->recent_lines = attempt.recent_lines(failure.local_rank);
}

std::shared_ptr<IncidentRecorder::Open> IncidentRecorder::take() { return std::exchange(open_, nullptr); }

std::string IncidentRecorder::reason(const Open& open) {
  return failure_text(open.incident.failures[root_cause(open.incident.failures)]);
}

Task<IncidentRecorder::Told> IncidentRecorder::tell(std::shared_ptr<Open> open, std::string consequence,
                                                    std::vector<AttemptRecord> history) {
  Told told;
  const std::size_t root = root_cause(open->incident.failures);
  const WorkerFailure cause = open->incident.failures[root];
  DeathEvidence said;
  add_backtraces(said, cause, open->recent_lines);
  std::function<DeathEvidence()> look = [cause, kind = kind_of_death(cause.exit_code, said), words = said.last_words,
                                         baseline = open->baseline] {
    DeathEvidence found = baseline->collect(static_cast<pid_t>(cause.pid), cause.exit_code);
    found.findings = find_circumstances(kind, words);
    return found;
  };
  auto looked = co_await looking_.ask(look);
  DeathEvidence found = looked ? *std::move(looked) : DeathEvidence{};
  told.incident = std::move(open->incident);
  found.last_lines = std::move(told.incident.evidence.last_lines);
  found.ended_for = std::move(told.incident.evidence.ended_for);
  found.python_stack = std::move(told.incident.evidence.python_stack);
  found.native_backtrace = std::move(said.native_backtrace);
  found.traceback = std::move(said.traceback);
  found.last_words = std::move(said.last_words);
  told.incident.evidence = std::move(found);
  told.incident.consequence = std::move(consequence);
  told.incident.history = std::move(history);
  if (open->directory.empty()) co_return told;
  std::string path = open->directory + "/incident.json";
  std::string content = incident_json(told.incident);
  auto written = co_await disk_.replace_file(path, std::move(content));
  if (written)
    told.path = std::move(path);
  else
    told.not_written = written.error().message();
  co_return told;
}

}  // namespace torchup
