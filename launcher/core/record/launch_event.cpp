#include "launcher/core/record/launch_event.hpp"

#include <chrono>

#include "launcher/core/record/collective_json.hpp"
#include "launcher/core/text/json.hpp"
#include "rendezvous/core/text/utc_text.hpp"

namespace torchup {
namespace {

void add_worker(ordered_json& out, const WorkerId& worker) {
  out["rank"] = worker.rank.value();
  out["local_rank"] = worker.local_rank.value();
  out["pid"] = worker.pid;
}

/// `rank` is null where a node as a whole is late.
void add_late(ordered_json& out, const std::optional<Rank>& rank, const std::string& host) {
  out["rank"] = rank ? ordered_json(rank->value()) : ordered_json(nullptr);
  out["host"] = host;
}

void add_steps(ordered_json& out, const std::optional<WorkerSteps>& steps) {
  if (!steps) return;
  out["last_step"] = steps->last_step;
  out["beats"] = steps->beats;
  out["first_step"] = steps->first_step;
  out["first_step_us"] = steps->first_us;
  out["last_step_us"] = steps->last_us;
  out["waited_us"] = steps->waited_us;
}

/// Beside each other, for those who want the numbers alone: [rank, first_step, step, waited_us], and when the two
/// ended.
void add_ranks(ordered_json& out, const std::vector<RankSteps>& ranks) {
  ordered_json numbers = ordered_json::array();
  ordered_json times = ordered_json::array();
  for (const auto& [rank, steps] : ranks) {
    numbers.push_back({rank.value(), steps.first_step, steps.last_step, steps.waited_us});
    times.push_back({rank.value(), steps.first_us, steps.last_us});
  }
  out["ranks"] = std::move(numbers);
  out["times"] = std::move(times);
}

ordered_json failures_json(const std::vector<WorkerFailure>& failures) {
  ordered_json list = ordered_json::array();
  for (const WorkerFailure& failure : failures)
    list.push_back({{"rank", failure.rank.value()},
                    {"local_rank", failure.local_rank.value()},
                    {"exit_code", failure.exit_code},
                    {"pid", failure.pid},
                    {"host", failure.host},
                    {"time", utc_text(failure.time_us)},
                    {"message", failure.message},
                    {"error_file", failure.error_file},
                    {"consequence", failure.consequence}});
  return list;
}

ordered_json faults_json(const std::vector<RehearsedFault>& faults) {
  const auto seconds = [](const std::optional<Duration>& time) {
    return time ? ordered_json(std::chrono::duration<double>{*time}.count()) : ordered_json(nullptr);
  };
  ordered_json list = ordered_json::array();
  for (const RehearsedFault& fault : faults)
    list.push_back({{"text", fault.text},
                    {"at_s", seconds(fault.at)},
                    {"missing", fault.missing},
                    {"noticed_after_s", seconds(fault.noticed_after)},
                    {"going_on_after_s", seconds(fault.going_on_after)},
                    {"steps_lost", fault.steps_lost ? ordered_json(*fault.steps_lost) : ordered_json(nullptr)}});
  return list;
}

/// Adds the fields of an event; its answer is the event's name.
struct AddFields {
  ordered_json& out;

  const char* operator()(const event::JobStarted& e) const {
    out["run_id"] = e.run_id;
    out["version"] = e.version;
    out["command"] = e.command;
    out["name"] = e.name;
    out["role"] = e.role;
    out["min_nodes"] = e.min_nodes;
    out["max_nodes"] = e.max_nodes;
    out["local_world_size"] = e.local_world_size;
    out["max_restarts"] = e.max_restarts;
    out["pid"] = e.pid;
    return "job_started";
  }
  const char* operator()(const event::Waiting& e) const {
    out["roster"] = e.roster;
    return "waiting";
  }
  const char* operator()(const event::RoundCompleted& e) const {
    const Placement& p = e.placement;
    out["round"] = p.round.value();
    out["group_rank"] = p.group_rank.value();
    out["group_world_size"] = p.group_world_size;
    out["first_rank"] = p.first_rank.value();
    out["world_size"] = p.world_size;
    out["first_role_rank"] = p.first_role_rank.value();
    out["role_world_size"] = p.role_world_size;
    out["master_addr"] = p.master_addr;
    out["master_port"] = p.master_port.value();
    out["restart_count"] = p.restart_count;
    out["kept"] = e.kept;
    return "round_completed";
  }
  const char* operator()(const event::AttemptStarted& e) const {
    out["name"] = e.name;
    out["directory"] = e.directory;
    out["restart_count"] = e.restart_count;
    return "attempt_started";
  }
  const char* operator()(const event::WorkerStarted& e) const {
    add_worker(out, e.worker);
    out["stdout_log"] = e.stdout_log;
    out["stderr_log"] = e.stderr_log;
    return "worker_started";
  }
  const char* operator()(const event::WorkerKept& e) const {
    add_worker(out, e.worker);
    out["stdout_log"] = e.stdout_log;
    out["stderr_log"] = e.stderr_log;
    return "worker_kept";
  }
  const char* operator()(const event::WorkerExited& e) const {
    add_worker(out, e.worker);
    out["exit_code"] = e.exit_code;
    out["end"] = worker_end_text(e.end);
    out["message"] = e.message;
    out["error_file"] = e.error_file;
    add_steps(out, e.steps);
    if (!e.binary.empty()) out["binary"] = e.binary;
    if (e.consequence) out["consequence"] = true;
    return "worker_exited";
  }
  const char* operator()(const event::Stopping& e) const {
    out["reason"] = e.reason;
    return "stopping";
  }
  const char* operator()(const event::AttemptEnded& e) const {
    out["reason"] = e.reason;
    return "attempt_ended";
  }
  const char* operator()(const event::SignalReceived& e) const {
    out["signal"] = e.signal;
    out["use"] = signal_use_text(e.use);
    out["consequence"] = e.consequence;
    return "signal_received";
  }
  const char* operator()(const event::TimeEnds& e) const {
    out["left_s"] = e.left_s;
    return "time_ends";
  }
  const char* operator()(const event::ClosingSignalSent& e) const {
    add_worker(out, e.worker);
    out["signal"] = e.signal;
    return "closing_signal_sent";
  }
  const char* operator()(const event::WorkerKilled& e) const {
    add_worker(out, e.worker);
    out["after_signal"] = e.after_signal;
    out["reason"] = e.reason;
    return "worker_killed";
  }
  const char* operator()(const event::WorkerAbandoned& e) const {
    add_worker(out, e.worker);
    return "worker_abandoned";
  }
  const char* operator()(const event::SpawnFailed& e) const {
    add_worker(out, e.worker);
    out["reason"] = e.reason;
    return "spawn_failed";
  }
  const char* operator()(const event::MembershipChanged& e) const {
    out["reason"] = e.reason;
    return "membership_changed";
  }
  const char* operator()(const event::Progress& e) const {
    out["step_min"] = e.step_min;
    out["step_max"] = e.step_max;
    out["steps_per_second"] = e.steps_per_second;
    add_ranks(out, e.ranks);
    return "progress";
  }
  const char* operator()(const event::OrderReceived& e) const {
    out["verb"] = e.verb;
    out["by"] = e.by;
    return "order_received";
  }
  const char* operator()(const event::HookFailed& e) const {
    out["command"] = e.command;
    out["reason"] = e.reason;
    return "hook_failed";
  }
  const char* operator()(const event::HangFound& e) const {
    out["number"] = e.number;
    out["kind"] = to_text(e.kind);
    out["summary"] = e.summary;
    out["culprits"] = ordered_json::array();
    for (const Rank rank : e.culprits) out["culprits"].push_back(rank.value());
    out["silent_s"] = e.silent_s;
    out["collective"] = collective_json(e.collective);
    out["action"] = to_text(e.action);
    return "hang_found";
  }
  const char* operator()(const event::HangOver& e) const {
    out["number"] = e.number;
    out["after_s"] = e.after_s;
    return "hang_over";
  }
  const char* operator()(const event::WorkerHung& e) const {
    add_worker(out, e.worker);
    out["reason"] = e.reason;
    if (!e.said.empty()) out["said"] = e.said;
    return "worker_hung";
  }
  const char* operator()(const event::RanksShown& e) const {
    out["number"] = e.number;
    out["summary"] = e.summary;
    return "ranks_shown";
  }
  const char* operator()(const event::StragglerFound& e) const {
    add_late(out, e.found.rank, e.found.host);
    out["share_percent"] = e.found.share_percent;
    out["late_ms"] = e.found.late_ms;
    out["step_ms"] = e.found.step_ms;
    out["last_percent"] = e.found.last_percent;
    out["operation"] = e.found.operation;
    return "straggler_found";
  }
  const char* operator()(const event::StragglerOver& e) const {
    add_late(out, e.over.rank, e.over.host);
    return "straggler_over";
  }
  const char* operator()(const event::WorkerStopped& e) const {
    add_worker(out, e.worker);
    return "worker_stopped";
  }
  const char* operator()(const event::WorkerUninterruptible& e) const {
    add_worker(out, e.worker);
    out["lasted_s"] = e.lasted_s;
    out["limit_s"] = e.limit_s;
    out["stuck"] = e.stuck;
    return "worker_uninterruptible";
  }
  const char* operator()(const event::WorkerSeen& e) const {
    add_worker(out, e.worker);
    out["state"] = e.state;
    if (e.step) out["step"] = *e.step;
    return "worker_seen";
  }
  const char* operator()(const event::TimerExpired& e) const {
    add_worker(out, e.worker);
    out["process"] = e.pid;
    out["scope"] = e.scope;
    out["signal"] = e.signal;
    return "timer_expired";
  }
  const char* operator()(const event::StateSaved& e) const {
    add_worker(out, e.worker);
    return "state_saved";
  }
  const char* operator()(const event::ErrorFileRefused& e) const {
    out["path"] = e.path;
    out["reason"] = e.reason;
    return "error_file_refused";
  }
  const char* operator()(const event::Restarting& e) const {
    out["restarts_left"] = e.restarts_left;
    out["reason"] = e.reason;
    out["restart"] = e.restart;
    out["kept"] = e.kept;
    out["workers"] = e.workers;
    return "restarting";
  }
  const char* operator()(const event::TemplateReady& e) const {
    out["pid"] = e.pid;
    out["modules"] = e.modules;
    out["took_s"] = e.took_s;
    return "template_ready";
  }
  const char* operator()(const event::TemplateLost& e) const {
    out["pid"] = e.pid;
    out["reason"] = e.reason;
    return "template_lost";
  }
  const char* operator()(const event::PreloadGivenUp& e) const {
    out["reason"] = e.reason;
    if (!e.said.empty()) out["said"] = e.said;
    return "preload_given_up";
  }
  const char* operator()(const event::Preflight& e) const {
    out["check"] = e.check;
    out["level"] = e.level;
    out["text"] = e.text;
    return "preflight";
  }
  const char* operator()(const event::NodeUnfit& e) const {
    out["host"] = e.host;
    out["reason"] = e.reason;
    return "node_unfit";
  }
  const char* operator()(const event::FaultInjected& e) const {
    out["text"] = e.text;
    return "fault_injected";
  }
  const char* operator()(const event::RehearsalEnded& e) const {
    out["passed"] = e.result.passed;
    out["text"] = e.result.text;
    out["faults"] = faults_json(e.result.faults);
    return "rehearsal_ended";
  }
  const char* operator()(const event::IncidentRecorded& e) const {
    out["path"] = e.path;
    out["summary"] = e.summary;
    out["restarted"] = e.restarted;
    if (!e.last_lines.empty()) out["last_lines"] = e.last_lines;
    return "incident_recorded";
  }
  const char* operator()(const event::LogWriteFailed& e) const {
    out["path"] = e.path;
    out["reason"] = e.reason;
    out["bytes_lost"] = e.bytes_lost;
    return "log_write_failed";
  }
  const char* operator()(const event::ConsoleLost& e) const {
    out["stream"] = e.stream;
    out["reason"] = e.reason;
    out["bytes_lost"] = e.bytes_lost;
    return "console_lost";
  }
  const char* operator()(const event::StoreRefused& e) const {
    out["address"] = e.address;
    return "store_refused";
  }
  const char* operator()(const event::TakenOver& e) const {
    out["term"] = e.term;
    out["from"] = e.from;
    out["proof"] = e.proved ? "ended" : "vacant";
    out["seconds"] = e.seconds;
    return "takeover";
  }
  const char* operator()(const event::Warning& e) const {
    out["text"] = e.text;
    if (!e.said.empty()) out["said"] = e.said;
    return "warning";
  }
  const char* operator()(const event::Fault& e) const {
    out["text"] = e.text;
    return "fault";
  }
  const char* operator()(const event::Notice& e) const {
    out["text"] = e.text;
    if (!e.said.empty()) out["said"] = e.said;
    return "notice";
  }
  const char* operator()(const event::JobEnded& e) const {
    out["exit_code"] = e.verdict.exit_code;
    out["reason"] = e.verdict.reason;
    out["failures"] = failures_json(e.verdict.failures);
    if (e.launcher_exit_code) out["launcher_exit_code"] = *e.launcher_exit_code;
    return "job_ended";
  }
};

}  // namespace

std::string event_name(const EventBody& event) {
  ordered_json fields;
  return std::visit(AddFields{fields}, event);
}

std::string to_json_line(const LaunchEvent& event, const std::string& host) {
  ordered_json out;
  out["schema"] = event_schema;
  out["time"] = utc_text(event.at.utc_us);
  out["monotonic_us"] = event.at.monotonic_us;
  out["host"] = host;
  out["event"] = nullptr;  // its place in the line
  const char* name = std::visit(AddFields{out}, event.body);
  out["event"] = name;
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace torchup
