#include "launcher/os/agent/job_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "launcher/core/diagnosis/worker_seen.hpp"
#include "launcher/core/record/error_file.hpp"
#include "launcher/core/record/exit_report.hpp"
#include "launcher/core/record/incident.hpp"
#include "launcher/core/record/termination_text.hpp"
#include "launcher/core/text/signals.hpp"
#include "launcher/os/io/own_log.hpp"
#include "launcher/os/output/evidence.hpp"

namespace torchup {
namespace {

/// Failing log files are told no more often.
constexpr Duration log_failure_interval = std::chrono::minutes{1};
/// How long the last lines may take to be written.
constexpr Duration finish_limit = std::chrono::seconds{2};

std::int64_t microseconds(auto time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

}  // namespace

JobRecord::JobRecord(asio::io_context& loop, const LaunchConfig& config, std::string host, pid_t launcher,
                     Output& output)
    : loop_{loop}, config_{config}, host_{std::move(host)}, launcher_{launcher}, output_{output},
      incidents_{loop, output.disk(), config.rendezvous.run_id.value(), host_, !config.output.log_dir.empty()},
      hook_{loop,
            config,
            host_,
            {[this](EventBody body) { record(std::move(body)); }, [this] { return output_.helper_streams(""); }}},
      status_{config.output, launcher, output}, restarts_told_{loop} {
  if (config_.event_log_handler == "console") {
    torchelastic_events_.emplace(host_, config_.rendezvous.backend == Backend::static_ ? "static" : "c10d");
  }
  open_log();
  log_use_ = log_->use(loop_);
}

/// What an earlier one has kept back is said now.
void JobRecord::open_log() {
  LogOptions options = own_log(config_.output.log);
  options.colours = output_.shows_colours();
  options.write = [this](const std::string& line) { output_.print_coloured(line); };
  log_ = std::make_unique<Log>(std::move(options));
}

void JobRecord::open_health_port() {
  if (!config_.health_port) return;
  auto opened =
      HealthPort::open(loop_, *config_.health_port, config_.in_pod,
                       {[this] { return health_json(record_); }, [this] { return std::string{record_.readiness()}; }});
  if (opened) {
    health_port_.emplace(*std::move(opened));
  } else {
    record(event::Warning{opened.error().message()});
  }
}

void JobRecord::record(EventBody body) {
  const LaunchEvent event{
      {microseconds(std::chrono::system_clock::now()), microseconds(std::chrono::steady_clock::now())},
      std::move(body)};
  const std::string line = to_json_line(event, host_);
  if (!config_.output.events_file.empty()) output_.append(config_.output.events_file, line);
  if (torchelastic_events_) {
    if (std::string lines = torchelastic_events_->apply(event); !lines.empty()) output_.print(std::move(lines));
  }
  record_.apply(event);
  status_.note(event.body);
  if (const auto* round = std::get_if<event::RoundCompleted>(&event.body)) kept_ = round->kept;
  say(event.body);
  if (onlooker_.happened) onlooker_.happened(event, line);
  hook_.happened(event);  // which may record its own failure, behind this
  if (const auto* started = std::get_if<event::AttemptStarted>(&event.body)) {
    attempt_name_ = started->name;
    if (failed_) {
      ++restarts_untold_;
      spawn(loop_, "incident", tell_restart(std::exchange(failed_, nullptr)));
    }
    incidents_.attempt_started();
  } else if (std::holds_alternative<event::AttemptEnded>(event.body)) {
    // An attempt that could not even begin has no incident of its own, and takes nobody else's away.
    if (auto open = incidents_.take()) failed_ = std::move(open);
  }
}

void JobRecord::spare(std::vector<pid_t>& pids) {
  const std::vector<pid_t> of_hook = hook_.spared();
  pids.insert(pids.end(), of_hook.begin(), of_hook.end());
}

void JobRecord::say(const EventBody& body) {
  if (!config_.tells_for_all() && is_of_whole_job(body)) return;
  auto line = to_text(body);
  if (!line) return;
  if (std::holds_alternative<event::LogWriteFailed>(body)) {
    // A full disk fails all files at once.
    const TimePoint now = std::chrono::steady_clock::now();
    if (log_failure_told_ && now - *log_failure_told_ < log_failure_interval) return;
    log_failure_told_ = now;
  }
  log_->tell(LogLine{line->level, std::move(line->text)});
  say_page(line->level, page_of(body));
}

/// A page stands below its first line, as a report does; where lines are objects it is as many of them.
void JobRecord::say_page(LogLevel level, std::vector<std::string> page) {
  const LogOptions options = own_log(config_.output.log);
  if (page.empty() || level < options.level) return;
  if (options.format == LogFormat::json) {
    for (std::string& each : page) log_->tell(LogLine{level, std::move(each)});
    return;
  }
  std::string text;
  for (const std::string& each : page) text += each + "\n";
  output_.print(text);
}

void JobRecord::other_says(LogLine line) {
  tell(others_limit_.step(std::move(line), std::chrono::steady_clock::now()));
}

void JobRecord::tell(std::vector<LogLine> allowed) {
  for (LogLine& line : allowed) record(event::Notice{std::move(line.text), line.level});
}

void JobRecord::worker_failed(const event::WorkerExited& worker, std::int64_t time_us, const WorkerRemains& remains,
                              const AttemptOutput& attempt, const std::vector<LivingWorker>& living) {
  WorkerFailure failure;
  failure.rank = worker.worker.rank;
  failure.local_rank = worker.worker.local_rank;
  failure.exit_code = worker.exit_code;
  failure.pid = worker.worker.pid;
  failure.host = host_;
  failure.time_us = time_us;
  failure.message = worker.message;
  failure.error_file = worker.error_file;
  failure.consequence = worker.consequence;
  if (remains.hook) failure.raised_at_ns = raised_for_good(remains.hook->raised_at_ns, remains.progress).value_or(0);
  // It had raised before: the signal of ours that ended it says nothing of that.
  const bool stopped = worker.end == WorkerEnd::terminated && worker.exit_code < 0;
  if (stopped && failure.raised_at_ns != 0) failure.exit_code = exception_code;
  std::vector<BystanderState> ended;
  for (const WorkerRecord& other : record_.attempts().back().workers) {
    if (other.exit_code != 0 || other.end != WorkerEnd::succeeded) continue;
    ended.push_back({other.worker.rank, other.worker.local_rank, other.worker.pid, std::string{ended_well}});
  }
  incidents_.worker_failed(failure, worker.ended_for, remains, attempt, attempt_name_, living, std::move(ended),
                           std::chrono::steady_clock::now());
}

/// Aside, while the next attempt already runs.
Task<> JobRecord::tell_restart(std::shared_ptr<IncidentRecorder::Open> failed) {
  const int left = config_.terms.max_restarts - record_.restart_count();
  std::string consequence = fmt::format("the workers were restarted, {} restarts left", left);
  if (kept_ > 0) {
    consequence = fmt::format("{} of {} processes were kept and the others restarted, {} restarts left", kept_,
                              config_.local_world_size, left);
  }
  std::vector<AttemptRecord> history = record_.history();
  auto told = co_await incidents_.tell(std::move(failed), std::move(consequence), std::move(history));
  if (!told.not_written.empty()) record(event::Fault{"no incident record: " + told.not_written});
  record(incident_event(told.incident, told.path, true));
  if (--restarts_untold_ == 0) restarts_told_.cancel();
}

Task<> JobRecord::finish(Finish action) {
  const Verdict& verdict = action.verdict;
  finishing_ = true;
  exit_code_ = launcher_exit_code(whole_verdict(verdict, action.local_failures),
                                  config_.propagate_exit_code);  // as in the report
  by_signal_ = signal_of_shell_code(verdict.exit_code).has_value();
  writes_files_ = !config_.shares_files() || has_report(verdict, teller(action.left));
  // What the disk is asked for has its own limit (disk_limit); between two questions the disk may look idle.
  while (restarts_untold_ != 0) {
    restarts_told_.expires_at(TimePoint::max());
    co_await restarts_told_.async_wait();
  }
  output_.disk().answer_by(std::chrono::steady_clock::now() + last_disk_limit);
  std::optional<IncidentRecorder::Told> told;
  if (failed_) {
    std::vector<AttemptRecord> history = record_.history();
    told = co_await incidents_.tell(std::exchange(failed_, nullptr), verdict.reason, std::move(history));
    if (!told->not_written.empty()) record(event::Fault{"no incident record: " + told->not_written});
    record(incident_event(told->incident, told->path, false));
  }
  record(event::JobEnded{verdict, action.rehearsal ? action.rehearsal->exit_code : exit_code_});
  if (verdict.exit_code != 0) report(action, told);
  co_await tell_ledger();
  if (action.rehearsal) {
    record(event::RehearsalEnded{*action.rehearsal});
    exit_code_ = action.rehearsal->exit_code;
  }
  if (verdict.exit_code != 0) co_await write_termination_log(verdict, told ? &told->incident : nullptr);
  co_await hook_.finish();
  output_.end_helpers();
  std::string last_words;
  if (verdict.exit_code != 0) last_words = co_await last_words_for_parent(action);
  if (!last_words.empty()) {
    auto written = co_await output_.disk().replace_file(config_.parent_error_file, std::move(last_words));
    if (!written) record(event::Fault{written.error().message()});
  }
  if (!config_.output.result_file.empty() || log_failure_told_) {
    co_await output_.settle(finish_limit);  // what was lost belongs into the result
  }
  if (const std::uint64_t lost = record_.log_bytes_lost(); lost != 0) {
    record(event::Fault{fmt::format("{} bytes of logs and events are lost in all", lost)});
  }
  co_await write_result();
  tell(others_limit_.rest(std::chrono::steady_clock::now()));
  log_use_.reset();
  open_log();
}

Task<> JobRecord::finish_output() {
  co_await output_.finish(finish_limit, by_signal_ ? Output::Patience::limited : Output::Patience::as_cat);
  // A pager may have taken longer than all the time that the disk had.
  output_.disk().answer_by(std::chrono::steady_clock::now() + finish_limit);
  co_await write_result();
}

/// `incident`: of this node; none: null.
Task<> JobRecord::write_termination_log(const Verdict& verdict, const Incident* incident) {
  if (config_.output.termination_log.empty() || !writes_files_) co_return;
  std::string text = termination_text(exit_code_, verdict, incident);
  auto written = co_await output_.disk().overwrite_file(config_.output.termination_log, std::move(text));
  if (!written) record(event::Fault{"no termination log: " + written.error().message()});
}

/// Once more when something is lost after the first time.
Task<> JobRecord::write_result() {
  if (config_.output.result_file.empty() || !writes_files_) co_return;
  std::string content = result_json(record_, host_);
  if (content == result_) co_return;
  result_ = content;
  auto written = co_await output_.disk().replace_file(config_.output.result_file, std::move(content));
  if (!written) record(event::Fault{written.error().message()});
}

std::string JobRecord::exception_text(int signal) const {
  return fmt::format("SignalException: Process {} got signal: {}", launcher_, signal);
}

/// Where nodes' outputs are merged, of all but one of them.
std::optional<std::string> JobRecord::words_instead_of_report(const Finish& action) const {
  if (!config_.merged_output) return std::nullopt;
  return words_of_bystander(action.verdict, exit_code_, teller(action.left));
}

Teller JobRecord::teller(bool left) const {
  const std::vector<std::string>& hosts = config_.scheduler.hosts;
  const auto& attempts = record_.attempts();
  const bool placed = !attempts.empty() && attempts.back().placement;
  const bool is_first = placed ? attempts.back().placement->group_rank == GroupRank{0} : config_.tells_for_all();
  return {host_, hosts.empty() ? "" : hosts.front(), is_first, config_.behind_front, left};
}

/// `told`: this node's incident, if it has one that was not told yet.
void JobRecord::report(const Finish& action, const std::optional<IncidentRecorder::Told>& told) {
  if (auto words = words_instead_of_report(action)) return log_->tell(LogLine{LogLevel::error, *std::move(words)});
  report_end(action);
  if (!told) return;
  output_.print(fmt::format("torchup: {}{}", incident_text(told->incident, local_time_text),
                            told->path.empty() ? "" : fmt::format("  all of it: {}\n", told->path)));
}

/// Of the whole job: who hosts one of several nodes adds what the others have told, and who hosts none says nothing.
Task<> JobRecord::tell_ledger() {
  LedgerCounts counts = record_.times().counts();
  if (!is_told(config_.output.ledger, counts.lasted_us)) co_return;
  TimeLedger ledger = record_.times().ledger();
  if (!config_.one_node()) {
    const auto whole = onlooker_.whole_ledger ? co_await onlooker_.whole_ledger() : std::nullopt;
    if (!whole) co_return;
    ledger = whole->ledger;
    // Of other nodes' steps and hangs these are not.
    counts = {
        .ranks = whole->ranks, .lasted_us = counts.lasted_us, .restarts = counts.restarts, .changes = counts.changes};
  }
  std::vector<std::string> lines = ledger_lines(ledger, counts);
  log_->tell(LogLine{LogLevel::info, lines.front()});
  lines.erase(lines.begin());
  say_page(LogLevel::info, std::move(lines));
}

void JobRecord::report_end(const Finish& action) {
  const Verdict& verdict = action.verdict;
  if (const auto signal = signal_of_shell_code(verdict.exit_code)) {
    output_.print(fmt::format("torch.distributed.elastic.multiprocessing.api.{}\n", exception_text(*signal)));
    return;
  }
  // Without a failure in the verdict the job was ended for another reason, and workers that died of it are no news.
  if (verdict.failures.empty()) {
    log_->tell(LogLine{LogLevel::error, verdict.reason});
    return;
  }
  output_.print(
      fmt::format("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: {}\n",
                  exit_report(config_.program.title, all_failures(verdict, action.local_failures), local_time_text)));
}

/// What goes into the error file of whoever started us; empty when nothing does.
Task<std::string> JobRecord::last_words_for_parent(const Finish& action) {
  const Verdict& verdict = action.verdict;
  const auto signal = signal_of_shell_code(verdict.exit_code);
  if (signal || action.local_failures.empty()) {
    if (config_.parent_error_file.empty()) co_return "";
    const std::string text = signal ? exception_text(*signal) : verdict.reason;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    co_return make_error_file(text, text, std::chrono::duration_cast<std::chrono::seconds>(now).count());
  }
  const WorkerFailure& cause = action.local_failures.at(root_cause(action.local_failures));
  if (cause.error_file.empty()) co_return "";
  if (config_.parent_error_file.empty() && hook_recorded_.contains(cause.error_file)) co_return "";
  if (config_.parent_error_file.empty()) {
    record(
        event::Fault{fmt::format("no error file defined for parent, to copy child error file ({})", cause.error_file)});
    co_return "";
  }
  const LastWords words = co_await output_.read_last_words(cause.error_file);
  if (!words.error) co_return "";
  if (!words.error->structured) {
    record(event::Warning{
        fmt::format("child error file ({}) has a new message format; skipping error code override", cause.error_file)});
  }
  co_return with_error_code(*words.bytes, cause.exit_code);
}

}  // namespace torchup
