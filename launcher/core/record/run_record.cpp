#include "launcher/core/record/run_record.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/text/json.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;  // clang 14 needs to be told

template <class List>
void note_loss(List& losses, const std::string& where, std::uint64_t bytes) {
  const auto known = std::find_if(losses.begin(), losses.end(), [&](const auto& loss) { return loss.where == where; });
  if (known != losses.end()) {
    known->bytes = std::max(known->bytes, bytes);
    return;
  }
  losses.push_back({where, bytes});
  if (losses.size() <= loss_places_max) return;
  losses[1].bytes += losses[0].bytes;
  losses[1].where.clear();
  losses.pop_front();
}

template <class List, class Entry>
void keep(List& list, Entry entry, std::size_t most) {
  list.push_back(std::move(entry));
  if (list.size() > most) list.pop_front();
}

std::string kept_of(const std::string& message) {
  if (message.size() <= message_bytes_kept_max) return message;
  return fmt::format("{}\n... [{} bytes more, in the error file]", message.substr(0, message_bytes_kept_max),
                     message.size() - message_bytes_kept_max);
}

template <class List>
std::uint64_t total(const List& losses) {
  std::uint64_t bytes = 0;
  for (const auto& loss : losses) bytes += loss.bytes;
  return bytes;
}

}  // namespace

void RunRecord::enter(Phase phase, std::int64_t monotonic_us) {
  const std::int64_t spent = monotonic_us - phase_since_us_;
  switch (phase_) {
    case Phase::before:
      break;
    case Phase::waiting:
      phases_.waiting_us += spent;
      break;
    case Phase::starting:
      phases_.starting_us += spent;
      break;
    case Phase::running:
      phases_.running_us += spent;
      break;
    case Phase::stopping:
      phases_.stopping_us += spent;
      break;
  }
  phase_ = phase;
  phase_since_us_ = monotonic_us;
}

WorkerRecord* RunRecord::find(const WorkerId& worker) {
  if (attempts_.empty()) return nullptr;
  for (WorkerRecord& record : attempts_.back().workers)
    if (record.worker.local_rank == worker.local_rank) return &record;
  return nullptr;
}

/// Into the attempt that begins.
void RunRecord::add_worker(const event::WorkerStarted& started, const EventStamp& at) {
  if (attempts_.empty()) return;
  WorkerRecord worker;
  worker.worker = started.worker;
  worker.start_us = at.utc_us;
  worker.stdout_log = started.stdout_log;
  worker.stderr_log = started.stderr_log;
  attempts_.back().workers.push_back(std::move(worker));
  const bool all = !job_ || static_cast<int>(attempts_.back().workers.size()) >= job_->local_world_size;
  if (all && phase_ == Phase::starting) enter(Phase::running, at.monotonic_us);
}

void RunRecord::apply(const LaunchEvent& event) {
  const EventStamp at = event.at;
  if (const auto of_time = time_event_of(event)) times_.add(*of_time);
  std::visit(Overloaded{
                 [&](const event::JobStarted& e) {
                   job_ = e;
                   start_us_ = at.utc_us;
                   enter(Phase::waiting, at.monotonic_us);
                 },
                 [&](const event::RoundCompleted& e) {
                   placement_ = e.placement;
                   enter(Phase::starting, at.monotonic_us);
                 },
                 [&](const event::AttemptStarted& e) {
                   AttemptRecord attempt;
                   attempt.name = e.name;
                   attempt.directory = e.directory;
                   attempt.restart_count = e.restart_count;
                   attempt.placement = placement_;
                   attempt.start_us = at.utc_us;
                   if (attempts_.size() == attempts_kept_max) ++attempts_forgotten_;
                   keep(attempts_, std::move(attempt), attempts_kept_max);
                 },
                 [&](const event::WorkerStarted& e) { add_worker(e, at); },
                 [&](const event::WorkerKept& e) {
                   add_worker({e.worker, e.stdout_log, e.stderr_log}, at);
                 },
                 [&](const event::WorkerExited& e) {
                   WorkerRecord* worker = find(e.worker);
                   if (worker == nullptr) return;
                   worker->end_us = at.utc_us;
                   worker->exit_code = e.exit_code;
                   worker->end = e.end;
                   worker->message = kept_of(e.message);
                   worker->error_file = e.error_file;
                 },
                 [&](const event::Stopping&) { enter(Phase::stopping, at.monotonic_us); },
                 [&](const event::AttemptEnded& e) {
                   // An attempt whose directories could not be made has not begun.
                   if (!attempts_.empty() && attempts_.back().end_us == 0) {
                     attempts_.back().end_us = at.utc_us;
                     attempts_.back().end_reason = e.reason;
                   }
                   enter(Phase::waiting, at.monotonic_us);
                 },
                 [&](const event::IncidentRecorded& e) {
                   if (!e.path.empty()) keep(incidents_, e.path, lines_kept_max);
                 },
                 [&](const event::LogWriteFailed& e) { note_loss(log_losses_, e.path, e.bytes_lost); },
                 [&](const event::ConsoleLost& e) { note_loss(console_losses_, e.stream, e.bytes_lost); },
                 [&](const event::Warning& e) { keep(warnings_, to_text(e)->text, lines_kept_max); },
                 [&](const event::StoreRefused& e) { keep(warnings_, to_text(e)->text, lines_kept_max); },
                 [&](const event::TemplateLost& e) { keep(warnings_, to_text(e)->text, lines_kept_max); },
                 [&](const event::Preflight& e) {
                   if (e.level == "warning") keep(warnings_, to_text(e)->text, lines_kept_max);  // else: NodeUnfit
                 },
                 [&](const event::FaultInjected& e) { keep(warnings_, to_text(e)->text, lines_kept_max); },
                 [&](const event::NodeUnfit& e) { keep(warnings_, to_text(e)->text, lines_kept_max); },
                 [&](const event::PreloadGivenUp& e) { keep(warnings_, to_text(e)->text, lines_kept_max); },
                 [&](const event::JobEnded& e) {
                   verdict_ = e.verdict;
                   end_us_ = at.utc_us;
                   enter(Phase::before, at.monotonic_us);
                 },
                 [](const auto&) {},  // of no weight for what becomes of the job
             },
             event.body);
}

std::uint64_t RunRecord::log_bytes_lost() const { return total(log_losses_); }
std::uint64_t RunRecord::console_bytes_lost() const { return total(console_losses_); }

std::vector<AttemptRecord> RunRecord::history() const {
  std::vector<AttemptRecord> last;
  for (std::size_t i = attempts_.size() - std::min(attempts_.size(), history_max); i < attempts_.size(); ++i) {
    AttemptRecord& attempt = last.emplace_back();
    attempt.name = attempts_[i].name;
    attempt.directory = attempts_[i].directory;
    attempt.restart_count = attempts_[i].restart_count;
    attempt.placement = attempts_[i].placement;
    attempt.start_us = attempts_[i].start_us;
    attempt.end_us = attempts_[i].end_us;
    attempt.end_reason = attempts_[i].end_reason;
  }
  return last;
}

std::int64_t RunRecord::workers_alive() const {
  if (attempts_.empty()) return 0;
  const auto& workers = attempts_.back().workers;
  return std::ranges::count_if(workers, [](const WorkerRecord& worker) { return !worker.exit_code; });
}

std::string_view RunRecord::readiness() const {
  switch (phase_) {
    case Phase::before:
      return verdict_ ? "ended" : "beginning";
    case Phase::waiting:
      return "waiting";
    case Phase::starting:
      return "starting";
    case Phase::stopping:
      return "stopping";
    case Phase::running:
      break;
  }
  return workers_alive() > 0 ? "ok" : "ended";
}

std::string health_json(const RunRecord& record) {
  return fmt::format("{{\"status\": \"ok\", \"workers_alive\": {}, \"restart_count\": {}}}\n", record.workers_alive(),
                     record.restart_count());
}

std::string result_json(const RunRecord& record, const std::string& host) {
  const auto seconds = [](std::int64_t us) { return static_cast<double>(us) / 1e6; };
  ordered_json out;
  out["schema"] = result_schema;
  out["host"] = host;
  if (record.job()) {
    out["run_id"] = record.job()->run_id;
    out["name"] = record.job()->name;
    out["command"] = record.job()->command;
  }
  out["exit_code"] = record.verdict() ? ordered_json(record.verdict()->exit_code) : ordered_json(nullptr);
  out["reason"] = record.verdict() ? record.verdict()->reason : "";
  out["start"] = utc_text(record.start_us());
  out["end"] = utc_text(record.end_us());
  out["phases_s"] = {{"waiting", seconds(record.phases().waiting_us)},
                     {"starting", seconds(record.phases().starting_us)},
                     {"running", seconds(record.phases().running_us)},
                     {"stopping", seconds(record.phases().stopping_us)}};
  out["ledger"] = ordered_json::parse(ledger_json(record.times().ledger()));
  out["attempts_forgotten"] = record.attempts_forgotten();
  out["attempts"] = ordered_json::array();
  for (const AttemptRecord& attempt : record.attempts()) {
    ordered_json one;
    one["name"] = attempt.name;
    one["directory"] = attempt.directory;
    one["restart_count"] = attempt.restart_count;
    if (attempt.placement) {
      one["round"] = attempt.placement->round.value();
      one["world_size"] = attempt.placement->world_size;
      one["group_rank"] = attempt.placement->group_rank.value();
    }
    one["start"] = utc_text(attempt.start_us);
    one["end"] = attempt.end_us != 0 ? ordered_json(utc_text(attempt.end_us)) : ordered_json(nullptr);
    one["end_reason"] = attempt.end_reason;
    one["workers"] = ordered_json::array();
    for (const WorkerRecord& worker : attempt.workers)
      one["workers"].push_back(
          {{"rank", worker.worker.rank.value()},
           {"local_rank", worker.worker.local_rank.value()},
           {"pid", worker.worker.pid},
           {"exit_code", or_null(worker.exit_code)},
           {"end", worker.exit_code ? ordered_json(worker_end_text(worker.end)) : ordered_json(nullptr)},
           {"start", utc_text(worker.start_us)},
           {"seconds",
            worker.end_us != 0 ? ordered_json(seconds(worker.end_us - worker.start_us)) : ordered_json(nullptr)},
           {"message", worker.message},
           {"error_file", worker.error_file},
           {"stdout_log", worker.stdout_log},
           {"stderr_log", worker.stderr_log}});
    out["attempts"].push_back(std::move(one));
  }
  out["incidents"] = record.incidents();
  out["warnings"] = record.warnings();
  out["log_bytes_lost"] = record.log_bytes_lost();
  out["console_bytes_lost"] = record.console_bytes_lost();
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace torchup
