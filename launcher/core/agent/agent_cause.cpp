#include <algorithm>
#include <csignal>
#include <utility>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/record/cause_words.hpp"
#include "launcher/core/record/exit_report.hpp"

/// Which failure is the cause of the others. Whoever dies first is often not: an exception on its way out closes
/// connections, of which others die, and its own process may take long to end.
namespace torchup {
namespace {

bool is_of_others(const std::vector<std::string>& lines) {
  return cause_kind(last_words(lines)) == CauseKind::consequence;
}

}  // namespace

/// The one place where a failure is called a consequence of another. Whoever ended after our stop is one, unless it had
/// failed by itself before: its error file tells when.
bool Agent::is_consequence(const WorkerEnded& how, WorkerEnd end) const {
  const Worker& worker = worker_at(how.local_rank);
  if (worker.failure_noted) return false;
  if (!worker.expired.empty() || !worker.abort_reason.empty()) return false;
  const auto second = [](std::int64_t time_us) { return time_us / 1'000'000; };  // as error files count
  if (end == WorkerEnd::terminated &&
      (how.error_file.empty() || failures_.empty() || second(how.time_us) >= second(failures_.front().time_us)))
    return true;
  // A hang has been found, and whoever is to blame for it is being ended.
  if (diagnosis_.action != HangAction::none) return true;
  // A signal is its own cause, but for the one by which programs give up.
  if (how.exit_code < 0 && how.exit_code != -SIGABRT) return false;
  return is_of_others(how.lines);
}

/// Whether somebody may be about to fail who is the cause: an exception passes its handlers, which close connections,
/// before it ends its process. Nodes elsewhere tell by themselves.
bool Agent::cause_may_come() const { return any_busy() || placement_->group_world_size > 1; }

/// In the order in which they were noticed, but that one which counts from when its exception left the program comes
/// before those from which the coordinator, who is not told when, could not tell it, and is no later than they are.
std::vector<WorkerFailure> Agent::told_failures() const {
  std::vector<WorkerFailure> told = failures_;
  const auto cause = told.begin() + static_cast<std::ptrdiff_t>(root_cause(told));
  if (cause->raised_at_ns == 0) return told;
  for (const WorkerFailure& other : told) {
    if (other.consequence == cause->consequence) cause->time_us = std::min(cause->time_us, other.time_us);
  }
  const auto first = std::ranges::find(told.begin(), cause, cause->consequence, &WorkerFailure::consequence);
  std::rotate(first, cause, cause + 1);
  return told;
}

void Agent::tell_failures() {
  cause_ends_.reset();
  report_failures(diagnosis_.action != HangAction::abort, failure_text(failures_[root_cause(failures_)]));
}

void Agent::note_failure(const WorkerEnded& how, bool consequence) {
  if (worker_at(how.local_rank).failure_noted) {
    // It had failed before it ended. Its own exit code counts, and not that of a signal of ours.
    const auto noted = std::ranges::find(failures_, how.local_rank, &WorkerFailure::local_rank);
    if (noted != failures_.end() && how.exit_code > 0) noted->exit_code = how.exit_code;
    return;
  }
  const WorkerId id = id_of(how.local_rank);
  WorkerFailure failure;
  failure.rank = id.rank;
  failure.local_rank = id.local_rank;
  failure.exit_code = how.exit_code;
  failure.pid = id.pid;
  failure.host = identity_.host;
  failure.time_us = how.time_us;
  failure.message = how.message;
  failure.error_file = how.error_file;
  failure.consequence = consequence;
  failure.raised_at_ns = how.raised_at_ns;
  failures_.push_back(std::move(failure));
}

void Agent::on(const CoordinatorLost& event) {
  if (!verdict_) {
    verdict_ = leaving_ ? Verdict{.exit_code = leaving_->exit_code, .reason = leaving_->reason, .failures = failures_}
                        : Verdict{.exit_code = event.exit_code, .reason = event.reason, .failures = failures_};
    // What died of our own stop is no cause of this end.
    std::erase_if(verdict_->failures, [](const WorkerFailure& failure) { return failure.consequence; });
    // Whoever had the report may be gone with the coordinator, and nobody says who has it now.
    if (!leaving_ && placement_ && event.exit_code == exit_code::unreachable) verdict_->reporter = identity_.host;
  }
  stop(SIGTERM, event.reason);
}

/// Nobody is stopped yet: whoever is the cause may show itself.
void Agent::await_cause() {
  if (cause_ends_) return;
  // Who is ended for a hang is the cause, and may take its time to end.
  cause_ends_ = now_ + cause_patience + (diagnosis_.action == HangAction::none ? Duration{0} : abort_patience);
  act(SeekCause{});
}

void Agent::on(const ExceptionSeen& event) {
  Worker& worker = worker_at(event.local_rank);
  if (phase_ != Phase::running || worker.state != WorkerState::running) return;
  // Of a worker's exceptions the last one counts: it has lived on after those before.
  worker.exception.reset();
  if (is_of_others(event.lines)) return;
  worker.exception = event;
  if (cause_ends_ && note_exceptions({}, true)) tell_failures();
}

/// Notes as failures the exceptions of living workers that were raised before `how` ended or raised, or all of them
/// where that is a consequence. Whether there were any.
bool Agent::note_exceptions(const WorkerEnded& how, bool consequence) {
  const std::int64_t before = how.raised_at_ns != 0 ? how.raised_at_ns : now_.time_since_epoch().count();
  bool any = false;
  for (const LocalRank local_rank : in_state(WorkerState::running)) {
    Worker& worker = worker_at(local_rank);
    if (!worker.exception || worker.failure_noted) continue;
    if (!consequence && worker.exception->raised_at_ns >= before) continue;
    WorkerEnded failed{local_rank, exception_code, worker.exception->time_us, worker.exception->message,
                       worker.exception->error_file};
    failed.raised_at_ns = worker.exception->raised_at_ns;
    note_failure(failed, false);
    worker.failure_noted = any = true;
  }
  return any;
}

}  // namespace torchup
