#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/record/exit_report.hpp"
#include "launcher/core/record/run_record.hpp"
#include "launcher/core/record/torchelastic_events.hpp"
#include "launcher/os/agent/incident_recorder.hpp"
#include "launcher/os/io/health_port.hpp"
#include "launcher/os/ops/event_hook.hpp"
#include "launcher/os/ops/status_line.hpp"
#include "launcher/os/output/worker_output.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/net/io/log.hpp"

namespace torchup {

/// Everything that is told of a job: each event goes to the events file, to torchrun's stream, into the run's record
/// and to people where it has a text; at the end come report, result file and the last words for whoever started us.
/// Lives on the loop.
class JobRecord {
 public:
  struct WholeLedger {
    TimeLedger ledger = {};
    std::int64_t ranks = 0;
  };
  /// `launcher`: the pid that users see.
  JobRecord(asio::io_context& loop, const LaunchConfig& config, std::string host, pid_t launcher, Output& output);

  /// Who else hears of what happens, here and elsewhere.
  struct Onlooker {
    /// `line`: the event as a line of JSON.
    std::function<void(const LaunchEvent& event, std::string_view line)> happened = {};
    /// Where this node hosts a job of several: what the time of all their ranks was spent on, as far as they have told.
    std::function<Task<std::optional<WholeLedger>>()> whole_ledger = {};
  };
  /// Before anything is recorded.
  void set_onlooker(Onlooker onlooker) { onlooker_ = std::move(onlooker); }

  void record(EventBody body);
  /// How far this node's workers are, for the terminal alone.
  void steps_seen(const StepReport& steps) { status_.see(steps); }
  /// A line of the log that is in no record, for people alone.
  void say_aside(LogLine line) { log_->tell(std::move(line)); }
  /// A line that others can make us say, as often as they like: the coordinator that we host, the watchdog.
  void other_says(LogLine line);
  /// A worker has failed, in `attempt`, while `living` went on: what is known of it at this moment, for the incident.
  /// To be called before the siblings are stopped.
  void worker_failed(const event::WorkerExited& worker, std::int64_t time_us, const WorkerRemains& remains,
                     const AttemptOutput& attempt, const std::vector<LivingWorker>& living);
  /// This error file is no program's own: whoever started us expects none.
  void hook_recorded(const std::string& error_file) { hook_recorded_.insert(error_file); }

  /// The rounds are made in this process.
  void hosts() { hook_.hosts(); }
  /// Whether this node tells what concerns the job, of which all nodes hear; as far as is known.
  [[nodiscard]] bool tells_of_job() const { return hook_.tells_of_job(); }
  /// Adds processes of --on-event, which are of no attempt.
  void spare(std::vector<pid_t>& pids);

  /// The port at which probes are told how the job is, where it was asked for. It is not worth a job.
  void open_health_port();
  /// Says everything that is left to say. What is written of it is written by the end of `finish_output`.
  Task<> finish(Finish action);
  /// Waits for whoever reads our output: as long as `cat` would, or 2 s where a signal ended the job.
  Task<> finish_output();
  /// The exit code, once `finish` has begun.
  [[nodiscard]] int exit_code() const { return exit_code_; }
  /// What is known of the job so far.
  [[nodiscard]] const RunRecord& facts() const { return record_; }
  [[nodiscard]] pid_t launcher() const { return launcher_; }
  /// Whether the job is over for people too: a signal then means those who do not read our output.
  [[nodiscard]] bool finishing() const { return finishing_; }

 private:
  void open_log();
  void say(const EventBody& body);
  void say_page(LogLevel level, std::vector<std::string> page);
  void tell(std::vector<LogLine> allowed);
  Task<> tell_restart(std::shared_ptr<IncidentRecorder::Open> failed);
  [[nodiscard]] std::optional<std::string> words_instead_of_report(const Finish& action) const;
  [[nodiscard]] Teller teller(bool left) const;
  void report(const Finish& action, const std::optional<IncidentRecorder::Told>& told);
  void report_end(const Finish& action);
  Task<> tell_ledger();
  [[nodiscard]] std::string exception_text(int signal) const;
  Task<std::string> last_words_for_parent(const Finish& action);
  Task<> write_termination_log(const Verdict& verdict, const Incident* incident);
  Task<> write_result();

  asio::io_context& loop_;
  const LaunchConfig& config_;
  const std::string host_;
  const pid_t launcher_;
  Output& output_;
  IncidentRecorder incidents_;
  RunRecord record_;
  EventHook hook_;
  std::optional<HealthPort> health_port_;
  std::optional<TorchelasticEvents> torchelastic_events_;
  StatusShow status_;
  LogLimit others_limit_{LogLimits{}};
  Onlooker onlooker_;
  std::unique_ptr<Log> log_;
  Log::LoopUse log_use_;
  std::string attempt_name_;
  std::set<std::string> hook_recorded_;             ///< error files
  std::shared_ptr<IncidentRecorder::Open> failed_;  ///< the last attempt's failure, of which nobody was told yet
  int restarts_untold_ = 0;                         ///< incidents before a restart that are still being written
  Timer restarts_told_;                             ///< ends when there is none
  std::optional<TimePoint> log_failure_told_;
  std::string result_;        ///< as last written to --result-file
  bool writes_files_ = true;  ///< --result-file and --termination-log are this node's to write
  bool finishing_ = false;
  int kept_ = 0;  ///< processes, in the newest round
  int exit_code_ = exit_code::internal;
  bool by_signal_ = false;  ///< a signal to the launcher has ended the job; the code may be a worker's own
};

}  // namespace torchup
