#include "launcher/os/agent/agent_runner.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <csignal>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/text/signals.hpp"
#include "launcher/os/agent/agent_operations.hpp"
#include "launcher/os/agent/attempt_sweep.hpp"
#include "launcher/os/agent/from_plan.hpp"
#include "launcher/os/agent/hang_desk.hpp"
#include "launcher/os/agent/heard_signals.hpp"
#include "launcher/os/agent/job_record.hpp"
#include "launcher/os/agent/signal_source.hpp"
#include "launcher/os/agent/slurm_commands.hpp"
#include "launcher/os/agent/socket_interface.hpp"
#include "launcher/os/agent/store_host.hpp"
#include "launcher/os/agent/timer_watch.hpp"
#include "launcher/os/agent/worker_ends.hpp"
#include "launcher/os/agent/worker_group.hpp"
#include "launcher/os/agent/worker_watch.hpp"
#include "launcher/os/diagnosis/node_checks.hpp"
#include "launcher/os/io/own_log.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/machine/start_memory.hpp"
#include "launcher/os/output/worker_output.hpp"
#include "launcher/os/rehearsal/fault_injector.hpp"
#include "launcher/os/rehearsal/starter_link.hpp"
#include "rendezvous/net/io/loop_turns.hpp"

namespace torchup {
namespace {

/// How long output may take that somebody still holds open after the last process of the attempt.
constexpr Duration drain_limit = std::chrono::seconds{1};
/// How long it may take before a node that is to be killed.
constexpr Duration settle_limit = std::chrono::seconds{1};
/// How long the verdict may take to reach all other nodes when we host the coordinator.
constexpr Duration linger_limit = std::chrono::seconds{10};

std::int64_t utc_now_us() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count();
}

/// The loop: events in, actions out. What takes more than a call lies in the parts below.
class AgentRunner {
 public:
  AgentRunner(const LaunchConfig& config, Guarded guarded, const std::string& host)
      : config_{config}, guarded_{std::move(guarded)}, output_{loop_, output_plan(config, host), recorder()},
        job_{loop_, config, host, guarded_.outer, output_},
        workers_{
            loop_,
            config,
            guarded_.heritage,
            {[this](AgentEvent event) { on_start(std::move(event)); },
             [this](LocalRank local_rank, const WorkerLooked& answer) { desk_.heard(local_rank, answer); }, recorder(),
             [this](const WorkerId& worker, int exit_code, WorkerRemains remains) {
               timers_.worker_gone(worker.pid);
               ends_.gone(worker, exit_code, std::move(remains));
             }}},
        desk_{loop_, config, workers_, output_, {teller(), recorder(), [this] { return link_->clock(); }}},
        sweep_{loop_, guarded_.cgroup_tag, recorder(), [this] { spawn(loop_, "end attempt", end_attempt()); }},
        agent_{config, agent_identity(config, host)}, watch_{loop_, workers_, agent_.step_interval(),
                                                             agent_.state_interval(),
                                                             [this](AgentEvent event) { on_watch(std::move(event)); }},
        timers_{loop_,
                config.timer_file,
                workers_,
                {teller(), recorder(), [this](LogLine line) { job_.other_says(std::move(line)); }}},
        faults_{loop_,
                guarded_,
                {[this](LocalRank worker, std::int64_t pid, int number) {
                   return workers_.signal_process(worker, pid, number);
                 },
                 teller(), [this](bool cut) { return link_->set_cut(cut); }}},
        checks_{loop_, config, host, {teller(), [this] { return link_->day_ahead(); }}},
        ends_{loop_,
              config.local_world_size,
              workers_,
              output_,
              {teller(), recorder(), [this](const std::string& error_file) { job_.hook_recorded(error_file); },
               [this] { return attempt_.get(); }}},
        time_{loop_, config, {teller(), recorder()}}, interface_{loop_, recorder()}, start_memory_{loop_},
        store_{loop_, config, [this](LogLine line) { job_.other_says(std::move(line)); }, recorder()},
        operations_{
            loop_,   config, host,  guarded_.outer,
            output_, job_,   desk_, {[this] { return link_.get(); }, [this] { return attempt_.get(); }, teller()}},
        heard_{config, guarded_, {sweep_, output_, workers_, job_}, teller()},
        signals_{loop_, std::move(guarded_.lifeline), [this](const signalfd_siginfo& info) { heard_.take(info); },
                 [this] { end_alone(); }} {}

  int run() {
    signals_.start();
    begin();
    watch_.start();
    run_turns(loop_, operations_.turns());
    return job_.exit_code();
  }

  /// Ends what is left, but for those whom nothing ends.
  void leave_nothing() {
    static_cast<void>(kill_descendants(last_kill_limit, sweep_.given_up()));
    sweep_.discard_next_cgroup();
    workers_.remove_hook();
    operations_.close();
  }

 private:
  /// For the parts below, which are made before they have anything to say.
  std::function<void(AgentEvent)> teller() {
    return [this](AgentEvent event) { handle(std::move(event)); };
  }
  std::function<void(EventBody)> recorder() {
    return [this](EventBody body) { job_.record(std::move(body)); };
  }

  void begin() {
    job_.set_onlooker({[this](const LaunchEvent& event, std::string_view line) { operations_.happened(event, line); },
                       [this] { return operations_.whole_ledger(); }});
    job_.record(job_started(config_, guarded_.outer));
    for (const std::string& warning : config_.warnings) job_.record(event::Warning{warning});
    AttachSettings settings = attach_settings(config_);
    if (settings.endpoint || settings.etcd) settings.log = [this](const LogLine& line) { job_.other_says(line); };
    if (settings.etcd) {
      settings.etcd->took_over = [this](const SeatCandidate::TakenOver& told) {
        if (told.jobs == 0) return;  // the job begins
        job_.record(event::TakenOver{told.term, told.from, told.proved, std::chrono::duration<double>{told.after}.count()});
      };
    }
    operations_.prepare(settings);
    link_ = attach(loop_, std::move(settings), [this](LinkEvent event) { on_link(std::move(event)); });
    job_.open_health_port();
    operations_.open();
    sweep_.know({[this] { return spared(); }, [this] { return workers_.forked(); }});
    if (!config_.preload.empty()) preload();
    sweep_.make_cgroup();  // early: the log writer makes the first directories meanwhile
    handle(Begin{});
    time_.begin();
  }

  /// Who is of no attempt.
  [[nodiscard]] std::vector<pid_t> spared() {
    std::vector<pid_t> pids = workers_.spared();
    if (const auto helper = faults_.helper()) pids.push_back(*helper);
    job_.spare(pids);
    return pids;
  }

  void preload() {
    workers_.preload({[this] { return output_.helper_streams("[preload] "); }, [this] { return sweep_.next_cgroup(); },
                      [this] { sweep_.child_ended(); }});
  }

  /// What became of a worker's start.
  void on_start(AgentEvent event) {
    const auto* const started = std::get_if<WorkerStarted>(&event);
    auto expired = started ? timers_.expired_before(*started) : std::nullopt;
    handle(std::move(event));
    if (expired) handle(*std::move(expired));
    if (workers_.starting()) return;
    output_.clear_left_behind();
    start_memory_.workers_started();
  }

  // Events in, actions out.
  /// Actions may bring about further events; those wait until the actions are done.
  void handle(AgentEvent event) {
    events_.push_back(std::move(event));
    if (events_.size() > 1) return;
    while (!events_.empty()) {
      for (AgentAction& action : agent_.step(events_.front(), std::chrono::steady_clock::now())) {
        std::visit([this](auto& what) { perform(what); }, action);
      }
      events_.pop_front();
    }
    arm_timer();
  }

  /// What was seen of living workers.
  void on_watch(AgentEvent event) {
    if (const auto* steps = std::get_if<StepsSeen>(&event)) operations_.seen(*steps);
    handle(std::move(event));
  }

  void arm_timer() {
    const auto deadline = agent_.deadline();
    if (deadline == armed_) return;
    armed_ = deadline;
    timer_.cancel();
    if (!deadline) return;
    timer_.expires_at(*deadline);
    timer_.async_wait([this](boost::system::error_code error) {
      if (error) return;
      armed_.reset();
      handle(Wake{});
    });
  }

  void on_link(LinkEvent event) {
    if (auto* message = std::get_if<CoordinatorMessage>(&event)) {
      if (operations_.takes(*message)) return;
      if (is_planned_stop(*message)) on_watch(StepsSeen{workers_.steps()});
      handle(FromCoordinator{std::move(*message), link_->is_foreign()});
    } else {
      auto& lost = std::get<LinkLost>(event);
      handle(CoordinatorLost{lost.exit_code, std::move(lost.reason)});
    }
  }

  void perform(Send& action) { link_->send(std::move(action.message)); }

  void perform(const OpenStore& action) {
    auto opened = store_.open(action.sources);
    if (!opened) return handle(StoreFailed{action.round, opened.error()});
    handle(StoreOpened{action.round, opened->port, opened->key});
  }

  void perform(StartWorkers& action) {
    workers_.renew();
    spawn(loop_, "start workers", start_workers(std::move(action)));
  }
  void perform(const CancelStarts& action) {
    workers_.cancel_starts();
    if (action.killed) workers_.end_births();
    interface_.cancel();
  }
  void perform(const SignalWorkers& action) { workers_.signal(action.workers, action.number, action.ends); }
  void perform(const DrainWorkers& action) { workers_.drain(action.number, action.insist); }
  void perform(const EndRound& action) { workers_.end_round(action); }
  void perform(const BlameWorker& action) { workers_.blame(action.local_rank); }
  void perform(const AbortWorkers& action) { workers_.abort(action.workers); }
  void perform(const KillWorkers& action) {
    workers_.kill(action.workers);
    if (action.everything) sweep_.kill_cgroup();
  }
  void perform(const SweepDescendants& action) {
    if (ending_) return;
    kept_ = action.kept;
    workers_.keep(kept_);
    sweep_.begin(action.patience, action.grace, !kept_.empty());
  }
  void perform(const RunChecks& action) {
    checks_.run(action);
    workers_.prepare();  // meanwhile
  }
  void perform(const CancelChecks&) { checks_.cancel(); }
  void perform(CompareNodes& action) {
    if (const auto store = store_.reach(action.placement)) action.placement.local_store = *store;
    checks_.compare(action);
  }
  void perform(const SeekCause&) { ends_.seek_cause(); }
  void perform(const ShowWorkers& action) { desk_.perform(action); }
  void perform(const TakeLooks& action) { desk_.perform(action); }
  void perform(const AskEndOfTime&) { time_.ask(); }
  void perform(const ReportProgress& action) { link_->report_progress(action.report); }
  void perform(TellHang& action) { desk_.perform(action, attempt_ ? attempt_->directory() : ""); }
  void perform(const InjectFault& action) {
    if (action.inject.action.kind != FaultKind::kill_node) return faults_.perform(action);
    spawn(loop_, "kill this node", kill_node(action));
  }
  void perform(const ReleaseWorkers&) { faults_.release(); }
  void perform(const TellStarter& action) { tell_starter(action.report); }
  void perform(Record& action) {
    const auto* exited = std::get_if<event::WorkerExited>(&action.event);
    const bool failed =
        exited && (exited->end == WorkerEnd::failed || (exited->end == WorkerEnd::terminated && !exited->consequence));
    if (failed && attempt_) {
      const LeftBehind& left = ends_.of(exited->worker.local_rank);
      job_.worker_failed(*exited, left.time_us, left.remains, *attempt_, workers_.living());
    }
    const auto* lost = std::get_if<event::WorkerAbandoned>(&action.event);
    if (lost && lost->worker.pid > 0) sweep_.expect_no_end_of(static_cast<pid_t>(lost->worker.pid));
    job_.record(std::move(action.event));
  }
  void perform(Finish& action) {
    workers_.end_preload();
    checks_.finish();
    sweep_.discard_cgroup();
    spawn(loop_, "finish", finish(std::move(action)));
  }

  /// What was told until then is to be read.
  Task<> kill_node(InjectFault action) {
    co_await output_.settle(settle_limit);
    faults_.perform(action);
  }

  Task<> start_workers(StartWorkers action) {
    const Placement placement = action.placement;
    job_.record(event::RoundCompleted{placement, static_cast<int>(action.kept.size())});
    auto opened = co_await output_.begin_attempt(action.attempt, placement.first_rank);
    const auto store = store_.reach(placement);
    if (!opened || !store) {
      const std::string why = !opened ? opened.error().message() : "the store proxy: " + store.error().message();
      for (int i = 0; i < config_.local_world_size; ++i) handle(SpawnFailed{LocalRank{i}, why, true, utc_now_us()});
      co_return;
    }
    for (const LocalRank local_rank : action.kept) {
      if (attempt_) (*opened)->adopt(*attempt_, local_rank);
    }
    attempt_ = *std::move(opened);
    WorkerGroup::Start start;
    start.placement = placement;
    start.placement.local_store = *store;
    start.output = attempt_.get();
    if (config_.set_socket_ifname && !workers_.cancelled()) {
      start.variables = co_await interface_.variables(placement.master_addr);
    }
    timers_.open();
    event::AttemptStarted started;
    started.name = action.attempt;
    started.directory = attempt_->directory();
    started.restart_count = placement.restart_count;
    job_.record(std::move(started));
    sweep_.make_cgroup();
    start.cgroup = sweep_.cgroup();
    start.kept = std::move(action.kept);
    workers_.start(std::move(start));
  }

  /// Nothing of the attempt lives any more.
  Task<> end_attempt() {
    ending_ = true;
    timers_.close();
    if (attempt_) co_await attempt_->drain(drain_limit, kept_);
    ending_ = false;
    const bool over = kept_.empty();  // else who is kept writes on
    if (over) operations_.output_ended();
    handle(DescendantsGone{});  // which may only be queued: what has followed from it comes when the output has gone
    if (over) attempt_.reset();
  }

  Task<> finish(Finish action) {
    co_await job_.finish(std::move(action));
    co_await operations_.finish();
    // Whoever reads our output with a pager may take hours over it; the other nodes need not wait for that.
    link_->finish(linger(), [this] { spawn(loop_, "finish output", finish_output()); });
  }

  /// Back in the queue, Slurm ends what runs: the workers of other nodes have their time to save before.
  [[nodiscard]] Duration linger() const {
    if (!config_.requeue || job_.exit_code() != requeue_code) return linger_limit;
    return std::max({linger_limit, 2 * config_.stop_grace, time_.left() - requeue_time});
  }

  Task<> finish_output() {
    co_await job_.finish_output();
    loop_.stop();
  }

  /// The outer process is gone.
  [[noreturn]] void end_alone() {
    sweep_.end_everything();
    workers_.remove_hook();
    ::_exit(shell_code(SIGKILL));
  }

  const LaunchConfig& config_;
  Guarded guarded_;
  asio::io_context loop_{1};
  asio::steady_timer timer_{loop_};
  Output output_;
  JobRecord job_;
  WorkerGroup workers_;
  HangDesk desk_;
  AttemptSweep sweep_;
  Agent agent_;
  WorkerWatch watch_;
  TimerWatch timers_;
  FaultInjector faults_;
  NodeChecks checks_;
  WorkerEnds ends_;
  JobTime time_;
  SocketInterface interface_;
  StartMemory start_memory_;
  StoreHost store_;
  AgentOperations operations_;
  HeardSignals heard_;
  SignalSource signals_;
  std::unique_ptr<AgentLink> link_;
  std::deque<AgentEvent> events_;
  std::optional<TimePoint> armed_;
  std::unique_ptr<AttemptOutput> attempt_;  ///< of the running attempt
  std::vector<LocalRank> kept_;             ///< of the attempt that has ended
  bool ending_ = false;                     ///< the sweep is done, the output is being drained
};

}  // namespace

void run_agent(const LaunchConfig& config, Guarded guarded, const std::string& host, Seats seats) {
  answer_for_workers();
  AgentRunner runner{config, std::move(guarded), host};
  const int status = runner.run();
  runner.leave_nothing();
  if (const auto told = config.requeue ? requeue(*config.requeue, status) : std::nullopt) {
    Log{own_log(config.output.log)}.tell(*told);
  }
  seats.tell(status);
  // Everything is written and nobody is left: threads and sockets are ended by the kernel, faster than one by one.
  ::_exit(status);
}

}  // namespace torchup
