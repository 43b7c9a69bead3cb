#include "launcher/os/agent/agent_operations.hpp"

#include <chrono>
#include <csignal>
#include <utility>

#include "launcher/core/ops/node_view.hpp"
#include "launcher/os/machine/process_stat.hpp"

namespace torchup {
namespace {

/// The coordinator is told no more often.
constexpr Duration report_interval = std::chrono::seconds{1};
/// How long whoever follows the job may take to be told of its end, in all.
constexpr Duration farewell = std::chrono::seconds{1};

std::int64_t monotonic_us() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

}  // namespace

AgentOperations::AgentOperations(asio::io_context& loop, const LaunchConfig& config, std::string host, pid_t launcher,
                                 Output& output, JobRecord& job, HangDesk& desk, Hooks hooks)
    : loop_{loop}, config_{config}, host_{std::move(host)}, job_{job}, hooks_{std::move(hooks)},
      sight_{config.local_world_size}, tally_{config.local_world_size},
      workers_{loop,
               output.disk(),
               {[this]() -> const RunRecord& { return job_.facts(); }, hooks_.attempt,
                [&desk](const std::vector<LocalRank>& workers, bool native, LooksShown shown) {
                  return desk.show(workers, native, std::move(shown));
                }}},
      service_{loop, service_settings(host_, launcher), output.disk(), workers_, service_hooks()} {}

NodeServiceSettings AgentOperations::service_settings(const std::string& host, pid_t launcher) const {
  return {.run_id = config_.rendezvous.run_id,
          .host = host,
          .pid = launcher,
          .name = config_.program.title,
          .meets_at = config_.rendezvous.endpoint ? to_string(*config_.rendezvous.endpoint) : host,
          .token = config_.rendezvous.token,
          .doors = config_.operations};
}

NodeService::Hooks AgentOperations::service_hooks() {
  NodeService::Hooks hooks;
  hooks.say = [this](AgentMessage message) {
    if (AgentLink* const link = hooks_.link()) link->send(std::move(message));
  };
  hooks.reaches = [this] {
    const AgentLink* const link = hooks_.link();
    return link && link->reaches();
  };
  hooks.is_foreign = [this] {
    const AgentLink* const link = hooks_.link();
    return link && link->is_foreign();
  };
  hooks.show = [this](JobPage& page) { show(page); };
  hooks.metrics = [this] { return metrics(); };
  hooks.readiness = [this] { return std::string{job_.facts().readiness()}; };
  hooks.end_node = [this](const std::string& by) { end_node(by); };
  hooks.words = {[this](std::string why) { job_.record(event::Warning{std::move(why)}); },
                 [this](LogLine line) { job_.say_aside(std::move(line)); }};
  return hooks;
}

void AgentOperations::prepare(AttachSettings& settings) {
  settings.read_token = config_.operations.read_token;
  settings.host_names = config_.operations.host_names;
  settings.pid = job_.launcher();
  settings.job_name = config_.program.title;
  settings.turns = &turns_;
  settings.hosting = [this](CoordinatorOps& onlookers) {
    onlookers_ = &onlookers;
    job_.hosts();
    CoordinatorOps::OwnAgent own;
    own.ordered = [this](const OrderReceived& order) { job_.record(event::OrderReceived{order.verb, order.by}); };
    own.metrics = [this] { return metrics(); };
    own.doors = &service_.doors();
    onlookers.set_own_agent(std::move(own));
    service_.host(onlookers);
  };
}

bool AgentOperations::takes(CoordinatorMessage& message) {
  if (const auto* question = std::get_if<Ask>(&message)) {
    service_.answer(*question);
  } else if (auto* answer = std::get_if<Answer>(&message)) {
    service_.answered(std::move(*answer));
  } else {
    return false;
  }
  return true;
}

// ---- what the coordinator is told

void AgentOperations::seen(const StepsSeen& steps) {
  const TimePoint now = std::chrono::steady_clock::now();
  sight_.look(steps.samples, now);
  tally_.look(steps.samples);
  if (const auto told = sight_.report(now).steps) job_.steps_seen(*told);
  note_way();
  if (reported_at_ && now < *reported_at_ + report_interval) return;
  reported_at_ = now;
  report_node();
}

NodeReport AgentOperations::report() const {
  NodeReport report = sight_.report(std::chrono::steady_clock::now());
  report.spent = job_.facts().times().ledger(monotonic_us()).spent();
  return report;
}

void AgentOperations::report_node() {
  if (AgentLink* const link = hooks_.link()) link->report_node(report());
}

void AgentOperations::note_way() {
  const AgentLink* const link = hooks_.link();
  if (link && link->reaches()) {
    out_since_.reset();
  } else if (!out_since_) {
    out_since_ = std::chrono::steady_clock::now();
  }
}

/// The coordinator notes some things by itself, and what all nodes hear of is told by one of them.
bool AgentOperations::told_elsewhere(const EventBody& event) const {
  if (is_noted_by_coordinator(event)) return true;
  return is_told_to_coordinator(event, true) && !is_told_to_coordinator(event, job_.tells_of_job());
}

void AgentOperations::happened(const LaunchEvent& event, std::string_view line) {
  sight_.record(event.body);
  tally_.record(event.body);
  if (std::holds_alternative<event::AttemptStarted>(event.body)) workers_.attempt_started();
  if (std::holds_alternative<event::AttemptEnded>(event.body)) workers_.attempt_ended();
  if (const auto* waiting = std::get_if<event::Waiting>(&event.body)) waits_for_ = waiting->roster;
  while (line.ends_with('\n')) line.remove_suffix(1);
  if (!onlookers_ || !told_elsewhere(event.body)) service_.happened(line);
  if (std::holds_alternative<event::JobEnded>(event.body)) {
    service_.ended(line);
    workers_.job_ended();
  }
  if (onlookers_ || !is_told_to_coordinator(event.body, job_.tells_of_job())) return;
  if (AgentLink* const link = hooks_.link()) link->send(NodeEvent{std::string{line}});
}

// ---- what people are told

void AgentOperations::show(JobPage& page) {
  note_way();
  const TimePoint now = std::chrono::steady_clock::now();
  const AgentLink* const link = hooks_.link();
  NodeStanding standing;
  standing.host = host_;
  standing.torchruns = link && link->is_foreign();
  standing.waits_for = waits_for_;
  if (out_since_) standing.out_of_reach = now - *out_since_;
  page.show(node_view(job_.facts(), config_, standing), this_moment());
  page.report(NodeId{host_}, report(), now);
}

std::string AgentOperations::metrics() {
  for (const WorkerTally::Process& process : tally_.living()) {
    const auto use = process_use(static_cast<pid_t>(process.pid));
    if (use) tally_.used(process, use->cpu_s, use->resident_bytes);
  }
  return agent_metrics({.run_id = config_.rendezvous.run_id.value(),
                        .workers = tally_.workers(),
                        .exits = tally_.exits(),
                        .ledger = job_.facts().times().ledger(monotonic_us()),
                        .log_lost_bytes = job_.facts().log_bytes_lost()});
}

/// Among torchrun's agents this node alone can be ended.
void AgentOperations::end_node(const std::string& by) {
  job_.record(event::OrderReceived{"stop", by});
  hooks_.tell(SignalArrived{SIGTERM, true});
}

Task<> AgentOperations::finish() {
  Timer pause{loop_};
  const TimePoint until = std::chrono::steady_clock::now() + farewell;
  // One pause more than somebody was seen: who was answered in the last one has it sent in this.
  for (bool followed = is_followed(); followed && std::chrono::steady_clock::now() < until;) {
    followed = is_followed();
    pause.expires_after(farewell / 50);
    co_await pause.async_wait();
  }
}

bool AgentOperations::is_followed() const {
  return service_.is_followed() || (onlookers_ && onlookers_->http().streams() > 0);
}

Task<std::optional<JobRecord::WholeLedger>> AgentOperations::whole_ledger() {
  if (!onlookers_ || config_.one_node()) co_return std::nullopt;
  report_node();  // which is a turn of the loop away
  Timer pause{loop_};
  for (int turn = 0; turn < 2; ++turn) {
    pause.expires_after(Duration{0});
    co_await pause.async_wait();
  }
  JobPage* const page = onlookers_->page_of(config_.rendezvous.run_id);
  if (!page) co_return std::nullopt;
  const JobNumbers numbers = page->numbers(this_moment());
  JobRecord::WholeLedger whole{.ledger = numbers.ledger, .ranks = job_.facts().world_size()};
  if (whole.ranks == 0) {  // of a job without this node: those who have not left it yet
    for (const std::int64_t ranks : numbers.ranks) whole.ranks += ranks;
  }
  co_return whole;
}

}  // namespace torchup
