#include "launcher/os/agent_runner.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/core/agent.hpp"
#include "launcher/core/exit_report.hpp"
#include "launcher/core/incident.hpp"
#include "launcher/core/run_record.hpp"
#include "launcher/core/state_watch.hpp"
#include "launcher/core/step_watch.hpp"
#include "launcher/core/torchelastic_events.hpp"
#include "launcher/core/worker_command.hpp"
#include "launcher/core/worker_environment.hpp"
#include "launcher/os/attempt_cgroup.hpp"
#include "launcher/os/descendants.hpp"
#include "launcher/os/evidence.hpp"
#include "launcher/os/health_port.hpp"
#include "launcher/os/incident_recorder.hpp"
#include "launcher/os/node_facts.hpp"
#include "launcher/os/shared_page.hpp"
#include "launcher/os/spawner.hpp"
#include "launcher/os/watchdog.hpp"
#include "launcher/os/worker_output.hpp"
#include "launcher/os/worker_store.hpp"
#include "rendezvous/core/printable.hpp"
#include "rendezvous/net/attach.hpp"
#include "rendezvous/net/node_identity.hpp"

extern char** environ;

namespace torchup {
namespace {

/// How often a sweep looks again when no child's end wakes it.
constexpr Duration sweep_interval = std::chrono::milliseconds{20};
/// How often it asks the cgroup, which a reaped process may leave a moment later.
constexpr Duration cgroup_interval = std::chrono::milliseconds{1};
/// How long after the grace a sweep goes on; only the kernel can keep a process longer.
constexpr Duration sweep_limit = std::chrono::seconds{10};
/// How long output may take that somebody still holds open after the last process of the attempt.
constexpr Duration drain_limit = std::chrono::seconds{1};
/// How often the workers' heartbeats are looked at, and how long a hung worker may take to tell where it hangs.
constexpr Duration step_look = std::chrono::seconds{1};
constexpr Duration abort_patience = std::chrono::seconds{10};
/// Failing log files are told no more often.
constexpr Duration log_failure_interval = std::chrono::minutes{1};
constexpr Duration finish_limit = std::chrono::seconds{2};
/// How long the verdict may take to reach all other nodes when we host the coordinator.
constexpr Duration linger_limit = std::chrono::seconds{10};

using Descriptor = asio::posix::stream_descriptor;

std::vector<std::string> own_environment() {
  std::vector<std::string> list;
  for (char** entry = environ; *entry; ++entry) list.emplace_back(*entry);
  return list;
}

std::int64_t microseconds_now(auto clock_now) {
  return std::chrono::duration_cast<std::chrono::microseconds>(clock_now.time_since_epoch()).count();
}

/// A name is not looked up on the loop: every address then.
std::string numeric_or_every(const std::string& address) {
  boost::system::error_code error;
  asio::ip::make_address(address, error);
  return error ? "" : address;
}

/// The text of the system's error alone tells whether another try can help.
bool is_permanent(const Error& error) {
  const int code = error.code.value();
  return code == ENOENT || code == EACCES || code == ENOEXEC || code == ENOTDIR || code == ELOOP || code == E2BIG;
}

/// One local worker of the running attempt.
struct LocalWorker {
  pid_t pid = -1;
  std::unique_ptr<Descriptor> watch;  ///< its pidfd
  bool alive = false;
  bool ordered = false;            ///< the spawner has it
  std::vector<int> pending;        ///< signals to pass on that came in the meantime
  std::optional<SharedPage> page;  ///< nothing: the system gave none; the worker does without
  std::string hang;                ///< why we aborted it; empty: we did not
};

class AgentRunner {
 public:
  AgentRunner(const LaunchConfig& config, Guarded guarded, const std::string& host)
      : config_{config}, guarded_{std::move(guarded)}, host_{host}, environment_{config, own_environment()},
        state_watch_{config.role, config.stuck_timeout},
        output_{loop_,
                *make_output_plan(config.output, config.local_world_size, config.role, host,
                                  config.rendezvous.run_id.value()),
                [this](EventBody body) { on_output(std::move(body)); }},
        spawner_{loop_}, agent_{config, AgentIdentity{NodeId{""},
                                                      host,
                                                      {},
                                                      config.one_node() || config.terms.same_world == SameWorld::off
                                                          ? std::vector<Fact>{}
                                                          : node_facts(config, own_environment())}},
        workers_(static_cast<std::size_t>(config.local_world_size)) {}

  int run() {
    watch_signals();
    watch_lifeline();
    watch_states();
    begin();
    loop_.run();
    return exit_code_;
  }

 private:
  void begin() {
    event::JobStarted started;
    if (config_.event_log_handler == "console") {
      torchelastic_events_.emplace(host_, config_.rendezvous.backend == Backend::static_ ? "static" : "c10d");
    }
    started.run_id = config_.rendezvous.run_id.value();
    started.version = TORCHUP_VERSION;
    started.command = config_.program.command;
    started.name = config_.program.title;
    started.role = config_.role;
    started.min_nodes = config_.terms.min_nodes;
    started.max_nodes = config_.terms.max_nodes;
    started.local_world_size = config_.local_world_size;
    started.max_restarts = config_.terms.max_restarts;
    started.pid = guarded_.outer;
    record(std::move(started));
    for (const std::string& warning : config_.warnings) say({Say::Level::warning, warning});

    AttachSettings settings;
    settings.run_id = config_.rendezvous.run_id;
    if (meets_elsewhere()) settings.endpoint = config_.rendezvous.endpoint;
    settings.is_host = config_.rendezvous.is_host;
    settings.local_addr = config_.rendezvous.local_addr;
    settings.token = config_.rendezvous.token;
    settings.join_timeout = config_.terms.join_timeout;
    if (settings.endpoint && config_.rendezvous.backend == Backend::static_) {
      settings.is_host = config_.rendezvous.group_rank == GroupRank{0};
      settings.workers_share_port = true;
    }
    if (settings.endpoint)
      settings.log = [this](const LogLine& line) { say({Say::Level::info, printable(line.text)}); };
    link_ = attach(loop_, std::move(settings), [this](LinkEvent event) { on_link(std::move(event)); });
    open_side_doors();
    make_cgroup();  // early: the log writer makes the first directories meanwhile
    handle(Begin{});
  }

  void make_cgroup() { cgroup_ = AttemptCgroup::make(guarded_.cgroup_tag, attempts_begun_++); }

  /// Whether the rendezvous is at an address that others know. A static one on one node is only the workers' address.
  [[nodiscard]] bool meets_elsewhere() const {
    const RendezvousConfig& meeting = config_.rendezvous;
    if (!meeting.endpoint || meeting.endpoint->port == Port{0}) return false;
    return !config_.one_node() || meeting.backend == Backend::c10d;
  }

  /// The watchdog and the port for probes, where they were asked for. Neither is worth a job.
  void open_side_doors() {
    if (!config_.timer_file.empty()) {
      watchdog_.emplace(loop_, config_.timer_file, [this](std::string text) {
        record(event::Warning{text});
        say({Say::Level::warning, std::move(text)});
      });
    }
    if (!config_.health_port) return;
    auto opened = HealthPort::open(loop_, *config_.health_port, [this] { return health(); });
    if (opened) {
      health_port_.emplace(*std::move(opened));
    } else {
      say({Say::Level::warning, opened.error().message()});
    }
  }

  [[nodiscard]] std::string health() const {
    const auto alive =
        std::count_if(workers_.begin(), workers_.end(), [](const LocalWorker& worker) { return worker.alive; });
    return "{\"status\": \"ok\", \"workers_alive\": " + std::to_string(alive) +
           ", \"restart_count\": " + std::to_string(placement_.restart_count) + "}\n";
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
      if (const auto* waiting = std::get_if<Waiting>(message)) record(event::Waiting{waiting->roster});
      handle(FromCoordinator{std::move(*message)});
    } else {
      auto& lost = std::get<LinkLost>(event);
      handle(CoordinatorLost{lost.exit_code, std::move(lost.reason)});
    }
  }

  void perform(Send& action) { link_->send(std::move(action.message)); }

  void perform(const OpenStore& action) {
    store_.reset();
    auto port = open_store();
    if (!port) return handle(StoreFailed{action.round, port.error().message()});
    handle(StoreOpened{action.round, *port});
  }

  Result<Port> open_store() {
    const RendezvousConfig& meeting = config_.rendezvous;
    if (!config_.share_store) return free_port();
    const bool fixed = meeting.backend == Backend::static_;
    // With a static rendezvous of several nodes the workers' store is the one at the endpoint, beside the coordinator.
    if (fixed && !config_.one_node()) return meeting.endpoint->port;
    const bool loopback = config_.one_node() && (!fixed || meeting.endpoint->host == "127.0.0.1");
    const bool published = !fixed && !meeting.local_addr.empty();
    const std::string bind = published ? numeric_or_every(meeting.local_addr) : loopback ? "127.0.0.1" : "";
    const Port port = fixed ? meeting.endpoint->port : Port{0};
    auto opened = WorkerStore::open(bind, port);
    if (!opened && opened.error().code == std::errc::address_not_available) {
      // Behind address translation, what others use is not ours.
      say({Say::Level::info,
           "--local-addr " + bind + " is no address of this machine: the workers' store listens on all"});
      opened = WorkerStore::open("", port);
    }
    if (!opened) return opened.error();
    store_.emplace(*std::move(opened));
    return store_->port();
  }

  void perform(StartWorkers& action) {
    stop_signal_ = 0;
    stop_reason_.clear();
    drain_ = false;
    spawn(loop_, "start workers", start_workers(std::move(action)));
  }

  void perform(const SignalWorkers& action) {
    if (action.ends) {
      stop_signal_ = action.number;
      stop_reason_ = action.reason;
      record(event::Stopping{action.reason});
      if (action.number == SIGQUIT) tell_where_workers_are();
    }
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      LocalWorker& worker = workers_[i];
      if (worker.alive) {
        signal_worker(worker, action.number, action.ends);
      } else if (!action.ends && (worker.ordered || i >= static_cast<std::size_t>(next_worker_))) {
        worker.pending.push_back(action.number);
      }
    }
    if (action.ends) order_workers();
  }

  /// What SIGQUIT asks for: each worker's place in the kernel, and its step where it tells us of steps.
  void tell_where_workers_are() {
    for (int i = 0; i < config_.local_world_size; ++i) {
      const LocalWorker& worker = workers_[static_cast<std::size_t>(i)];
      if (!worker.alive) continue;
      const auto progress = progress_of(worker);
      say({Say::Level::error, "rank " + std::to_string(placement_.first_rank.value() + i) + " (pid " +
                                  std::to_string(worker.pid) + "): " + process_state(worker.pid) +
                                  (progress ? ", step " + std::to_string(progress->step) : "")});
    }
  }

  void perform(const DrainWorkers&) {
    drain_ = true;
    for (LocalWorker& worker : workers_) {
      if (worker.page) worker.page->request_drain();
    }
  }

  void perform(const KillWorkers&) {
    for (LocalWorker& worker : workers_) {
      if (!worker.alive) continue;
      say({Say::Level::warning, "Unable to shutdown process " + std::to_string(worker.pid) + " via " +
                                    std::to_string(stop_signal_) + ", forcefully exiting via 9"});
      ::kill(-worker.pid, SIGKILL);
    }
    stop_signal_ = SIGKILL;
  }

  void perform(const SweepDescendants& action) {
    sweep_until_ = std::chrono::steady_clock::now() + action.grace;
    if (!sweeping_) sweep_told_ = false;
    sweeping_ = true;
    continue_sweep();
  }

  void perform(const Say& action) { say(action); }

  void perform(const Finish& action) { spawn(loop_, "finish", finish(action)); }

  // Workers.

  Task<> start_workers(StartWorkers action) {
    const Placement placement = action.placement;
    record(event::RoundCompleted{placement});
    auto opened = co_await output_.begin_attempt(action.attempt, placement.first_rank);
    if (!opened) {
      for (int i = 0; i < config_.local_world_size; ++i) {
        handle(SpawnFailed{LocalRank{i}, opened.error().message(), true, utc_now()});
      }
      co_return;
    }
    attempt_ = *std::move(opened);
    placement_ = placement;
    if (config_.set_socket_ifname) {
      const std::string interface = co_await interface_to_others(placement.master_addr);
      socket_variables_.clear();
      for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}) {
        if (!interface.empty() && !std::getenv(name)) socket_variables_.push_back(std::string{name} + "=" + interface);
      }
    }
    if (watchdog_) {
      if (auto ready = watchdog_->open(); !ready) say({Say::Level::warning, ready.error().message()});
    }
    attempt_name_ = action.attempt;
    if (failed_attempt_) spawn(loop_, "incident", tell_restart(std::move(failed_attempt_)));
    incidents_.attempt_started();
    event::AttemptStarted started;
    started.name = action.attempt;
    started.directory = attempt_->directory();
    started.restart_count = placement.restart_count;
    record(std::move(started));
    if (!cgroup_) make_cgroup();
    next_worker_ = 0;
    order_workers();
    step_watch_.emplace(config_.heartbeat_timeout);
    watch_steps();
  }

  /// Group rank 0 finds the interface that has its own address.
  Task<std::string> interface_to_others(std::string address) {
    asio::ip::tcp::resolver resolver{loop_};
    auto [error, found] = co_await resolver.async_resolve(address, "", Token{});
    std::string interface;
    if (!error && !found.empty()) interface = interface_towards(found.begin()->endpoint().address().to_string());
    if (interface.empty()) say({Say::Level::warning, "--set-socket-ifname: no interface leads to " + address});
    co_return interface;
  }

  // Heartbeats.

  [[nodiscard]] std::optional<WorkerProgress> progress_of(const LocalWorker& worker) const {
    return worker.page && worker.pid > 0 ? worker.page->read(worker.pid) : std::nullopt;
  }

  void watch_steps() {
    const Duration limit = config_.heartbeat_timeout;
    step_timer_.expires_after(limit > Duration::zero() ? std::min<Duration>(limit / 4, step_look) : step_look);
    step_timer_.async_wait([this](boost::system::error_code error) {
      if (error || stop_signal_ != 0) return;
      look_at_steps();
      watch_steps();
    });
  }

  void look_at_steps() {
    std::vector<StepSample> samples;
    for (int i = 0; i < config_.local_world_size; ++i) {
      const LocalWorker& worker = workers_[static_cast<std::size_t>(i)];
      if (worker.alive) samples.push_back({Rank{placement_.first_rank.value() + i}, LocalRank{i}, progress_of(worker)});
    }
    const StepWatch::Findings findings = step_watch_->look(samples, std::chrono::steady_clock::now());
    if (!findings.slow.empty()) say({Say::Level::warning, findings.slow});
    if (!findings.hung) return;
    say({Say::Level::error, findings.hung->reason + ": aborted"});
    for (const LocalRank local_rank : findings.hung->workers) {
      LocalWorker& worker = workers_.at(static_cast<std::size_t>(local_rank.value()));
      worker.hang = findings.hung->reason;
      ::kill(worker.pid, SIGABRT);  // a handler of its own tells where it hangs
    }
    spawn(loop_, "end hung workers", end_hung(findings.hung->workers));
  }

  /// SIGKILL for those that SIGABRT did not end.
  Task<> end_hung(std::vector<LocalRank> hung) {
    std::vector<pid_t> pids;
    for (const LocalRank local_rank : hung)
      pids.push_back(workers_.at(static_cast<std::size_t>(local_rank.value())).pid);
    asio::steady_timer patience{loop_, abort_patience};
    co_await patience.async_wait(Token{});
    for (const LocalWorker& worker : workers_) {
      if (worker.alive && std::ranges::find(pids, worker.pid) != pids.end()) ::kill(-worker.pid, SIGKILL);
    }
  }

  /// The kernel's view of them, a few times within the limit and once a second at most.
  void watch_states() {
    const Duration limit = config_.stuck_timeout;
    state_timer_.expires_after(limit > Duration{0} ? std::min<Duration>(limit / 4, step_look) : step_look);
    state_timer_.async_wait([this](boost::system::error_code error) {
      if (error) return;
      if (stop_signal_ == 0) look_at_states();
      watch_states();
    });
  }

  void look_at_states() {
    std::vector<StateSample> samples;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      const LocalWorker& worker = workers_[i];
      if (!worker.alive) continue;
      samples.push_back({LocalRank{static_cast<int>(i)}, worker.pid, state_letter(worker.pid)});
    }
    for (StateFinding& finding : state_watch_.look(samples, std::chrono::steady_clock::now())) {
      say({finding.stuck ? Say::Level::error : Say::Level::warning, finding.text});
      if (finding.stuck) handle(GiveUp{std::move(finding.text)});
    }
  }

  /// Keeps the spawner busy, and no more: each order holds descriptors and an environment, and a child is made the
  /// slower the more descriptors are open here. After a stop it says of all the others that they were not started.
  void order_workers() {
    constexpr int orders_max = 8;
    while (next_worker_ < config_.local_world_size && (orders_ < orders_max || stop_signal_ != 0))
      order_worker(LocalRank{next_worker_++});
  }

  void order_worker(LocalRank local_rank) {
    if (stop_signal_ != 0) return handle(WorkerNotStarted{local_rank});
    auto streams = attempt_->take_child_streams(local_rank);
    if (!streams) return handle(SpawnFailed{local_rank, streams.error().message(), false, utc_now()});
    const Placement& placement = placement_;
    ChildRequest request;
    request.executable = config_.program.executable;
    request.arguments = worker_command(config_.program, local_rank);
    request.common_environment = environment_.common();
    request.environment = environment_.own(placement, local_rank, attempt_->files(local_rank).error_file);
    request.environment.insert(request.environment.end(), socket_variables_.begin(), socket_variables_.end());
    request.in = std::move(streams->in);
    request.out = std::move(streams->out);
    request.err = std::move(streams->err);
    LocalWorker& worker = workers_.at(static_cast<std::size_t>(local_rank.value()));
    if (auto page = SharedPage::make()) {
      worker.page.emplace(*std::move(page));
      if (drain_) worker.page->request_drain();
      request.page = worker.page->fd();
      request.page_address = worker.page->address(page_descriptor);
    }
    if (!config_.worker_cpus.empty()) {
      request.cpus.emplace(config_.worker_cpus.at(static_cast<std::size_t>(local_rank.value())));
    }
    if (cgroup_) request.cgroup = cgroup_->folder();
    const Rank rank{placement.first_rank.value() + local_rank.value()};
    worker.ordered = true;
    ++orders_;
    spawner_.start(std::move(request), [this, rank, local_rank](Result<ChildProcess> child) {
      on_spawned(rank, local_rank, std::move(child));
    });
  }

  void on_spawned(Rank rank, LocalRank local_rank, Result<ChildProcess> child) {
    --orders_;
    order_workers();
    LocalWorker& worker = workers_.at(static_cast<std::size_t>(local_rank.value()));
    if (!child) {
      worker = {};
      handle(SpawnFailed{local_rank, child.error().message(), is_permanent(child.error()), utc_now()});
      return;
    }
    worker.pid = child->pid;
    worker.alive = true;
    const WorkerId id{rank, local_rank, worker.pid};
    const WorkerFiles& files = attempt_->files(local_rank);
    record(event::WorkerStarted{id, files.stdout_log, files.stderr_log});
    handle(WorkerStarted{local_rank, id.pid});
    worker.watch = std::make_unique<Descriptor>(loop_, child->pidfd.release());
    worker.watch->async_wait(Descriptor::wait_read, [this, id](boost::system::error_code error) {
      if (!error) on_worker_gone(id);
    });
    for (const int number : std::exchange(worker.pending, {})) signal_worker(worker, number, false);
    // It was ordered before the stop.
    if (stop_signal_ != 0) signal_worker(worker, stop_signal_, true);
  }

  void on_worker_gone(const WorkerId& id) {
    LocalWorker& worker = workers_.at(static_cast<std::size_t>(id.local_rank.value()));
    WorkerEnded ended;
    ended.local_rank = id.local_rank;
    ended.exit_code = reap(worker.watch->native_handle());
    ended.time_us = utc_now();
    if (watchdog_) watchdog_->forget(id.pid);
    const std::optional<WorkerProgress> progress = progress_of(worker);
    const std::string hang = std::move(worker.hang);
    worker = {};
    attempt_->worker_gone(id.local_rank);
    Gone gone{id, std::move(ended), progress, hang, stop_signal_ != 0};
    if (gone.fine()) return tell_end(gone);
    gone.ended.message = default_failure_message(gone.ended.exit_code, id.pid);
    spawn(loop_, "read last words", with_last_words(std::move(gone)));
  }

  /// A worker whose process is gone, and what we knew of it then.
  struct Gone {
    WorkerId id;
    WorkerEnded ended;
    std::optional<WorkerProgress> progress;
    std::string hang;
    bool stopped;  ///< by us
    [[nodiscard]] bool fine() const { return ended.exit_code == 0 || ended.exit_code == requeue_code; }
  };

  /// Fills in what the worker's error file says of its end. The disk may be slow: nothing here waits for it.
  Task<> with_last_words(Gone gone) {
    const std::string path = attempt_->files(gone.id.local_rank).error_file;
    const LastWords words = co_await output_.read_last_words(path);
    if (!words.problem.empty())
      say({Say::Level::error, "Failed to parse reply file: " + path + " (" + words.problem + ")"});
    if (words.error) {
      gone.ended.error_file = path;
      if (!words.error->traceback.empty()) gone.ended.message = words.error->traceback;
      gone.ended.time_us = std::min(words.error->time_us, gone.ended.time_us);  // nobody writes after its death
    }
    if (!gone.hang.empty()) gone.ended.message = gone.hang + "\n" + gone.ended.message;
    if (!gone.stopped) note_failure(gone.id, gone.ended, gone.progress);
    tell_end(gone);
  }

  void tell_end(Gone& gone) {
    event::WorkerExited exited;
    exited.worker = gone.id;
    exited.exit_code = gone.ended.exit_code;
    exited.end = gone.fine() ? WorkerEnd::succeeded : gone.stopped ? WorkerEnd::terminated : WorkerEnd::failed;
    exited.message = gone.ended.message;
    exited.error_file = gone.ended.error_file;
    if (gone.progress) exited.last_step = gone.progress->step;
    record(std::move(exited));
    handle(std::move(gone.ended));
  }

  /// What is known of a worker's death at this moment, for the attempt's incident.
  void note_failure(const WorkerId& id, const WorkerEnded& ended, const std::optional<WorkerProgress>& progress) {
    WorkerFailure failure;
    failure.rank = id.rank;
    failure.local_rank = id.local_rank;
    failure.exit_code = ended.exit_code;
    failure.pid = id.pid;
    failure.host = host_;
    failure.time_us = ended.time_us;
    failure.message = ended.message;
    failure.error_file = ended.error_file;
    std::vector<LivingWorker> living;
    for (int i = 0; i < config_.local_world_size; ++i) {
      const LocalWorker& worker = workers_[static_cast<std::size_t>(i)];
      if (worker.alive)
        living.push_back({Rank{placement_.first_rank.value() + i}, LocalRank{i}, worker.pid, progress_of(worker)});
    }
    incidents_.worker_failed(failure, progress, *attempt_, attempt_name_, living, std::chrono::steady_clock::now());
  }

  /// Aside, while the next attempt already runs.
  Task<> tell_restart(std::shared_ptr<IncidentRecorder::Open> failed) {
    const int left = config_.terms.max_restarts - placement_.restart_count;
    std::string consequence = "the workers were restarted, " + std::to_string(left) + " restarts left";
    std::vector<AttemptRecord> history = record_.attempts();
    auto told = co_await incidents_.tell(std::move(failed), std::move(consequence), std::move(history));
    tell_not_written(told);
    record(event::IncidentRecorded{told.path, incident_summary(told.incident)});
    const std::string where = told.path.empty() ? "" : "; details: " + told.path;
    say({Say::Level::warning, "restarted after " + incident_summary(told.incident) + where});
  }

  void tell_not_written(const IncidentRecorder::Told& told) {
    if (!told.not_written.empty()) say({Say::Level::error, "no incident record: " + told.not_written});
  }

  void signal_worker(const LocalWorker& worker, int number, bool ends) {
    if (ends) {
      say({Say::Level::warning,
           "Sending process " + std::to_string(worker.pid) + " closing signal " + signal_name(number)});
    }
    ::kill(-worker.pid, number);
    if (ends) ::kill(-worker.pid, SIGCONT);
  }

  // What workers leave behind.

  void continue_sweep() {
    if (!sweeping_) return;
    reap_orphans();
    const TimePoint now = std::chrono::steady_clock::now();
    const bool only_leaving = !has_children();
    const bool gone = only_leaving && (!cgroup_ || cgroup_->empty());
    if (gone || now >= sweep_until_ + sweep_limit) {
      sweeping_ = false;
      sweep_timer_.cancel();
      spawn(loop_, "end attempt", end_attempt());
      return;
    }
    if (now >= sweep_until_) {
      if (cgroup_) cgroup_->kill();
      kill_descendants_once();
    } else if (!std::exchange(sweep_told_, true)) {
      for (const pid_t pid : descendants()) {
        ::kill(pid, SIGTERM);
        ::kill(pid, SIGCONT);
      }
    }
    sweep_timer_.expires_after(only_leaving ? cgroup_interval : sweep_interval);
    sweep_timer_.async_wait([this](boost::system::error_code error) {
      if (!error) continue_sweep();
    });
  }

  Task<> end_attempt() {
    if (watchdog_) watchdog_->close();
    cgroup_.reset();
    if (attempt_) {
      co_await attempt_->drain(drain_limit);
      failed_attempt_ = incidents_.take();
      record(event::AttemptEnded{failed_attempt_ ? IncidentRecorder::reason(*failed_attempt_) : stop_reason_});
    }
    handle(DescendantsGone{});
  }

  // Signals, and the outer process.

  void watch_signals() {
    const sigset_t signals = guarded_signals();
    signals_.assign(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    wait_for_signal();
  }

  void wait_for_signal() {
    signals_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
      if (error) return;
      signalfd_siginfo info{};
      while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info)
        on_signal(static_cast<int>(info.ssi_signo));
      wait_for_signal();
    });
  }

  void on_signal(int number) {
    switch (number) {
      case SIGCHLD:
        reap_orphans();
        continue_sweep();
        return;
      case SIGTSTP:
        return signal_groups(SIGSTOP);
      case SIGCONT:
        return signal_groups(SIGCONT);
      case SIGWINCH:
        output_.window_changed();
        return signal_groups(SIGWINCH);  // a worker's terminal is nobody's controlling one: the kernel tells nobody
      case SIGURG:
        return;
      case SIGHUP:
        if (guarded_.hangup_ignored) return;
        break;
      default:
        break;
    }
    if (finishing_ && number != SIGUSR1 && number != SIGUSR2) return output_.hurry();
    record(event::SignalReceived{number, ""});
    handle(SignalArrived{number});
  }

  void signal_groups(int number) {
    for (const LocalWorker& worker : workers_) {
      if (worker.alive) ::kill(-worker.pid, number);
    }
  }

  void watch_lifeline() {
    lifeline_.assign(guarded_.lifeline.release());
    lifeline_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
      if (error) return;
      if (cgroup_) cgroup_->kill();
      static_cast<void>(kill_descendants(sweep_limit));
      cgroup_.reset();
      ::_exit(128 + SIGKILL);
    });
  }

  // The record, and what people see.

  static std::int64_t utc_now() { return microseconds_now(std::chrono::system_clock::now()); }

  void record(EventBody body) {
    LaunchEvent event{{utc_now(), microseconds_now(std::chrono::steady_clock::now())}, std::move(body)};
    if (!config_.output.events_file.empty()) output_.append(config_.output.events_file, to_json_line(event, host_));
    if (torchelastic_events_) {
      if (std::string lines = torchelastic_events_->apply(event); !lines.empty()) output_.print(std::move(lines));
    }
    record_.apply(event);
  }

  /// The output has something to tell: bytes that are lost, a directory that is not there.
  void on_output(EventBody body) {
    if (const auto* failed = std::get_if<event::LogWriteFailed>(&body)) {
      // A full disk fails all files at once.
      const TimePoint now = std::chrono::steady_clock::now();
      if (!log_failure_told_ || now - *log_failure_told_ >= log_failure_interval) {
        log_failure_told_ = now;
        say({Say::Level::error, "cannot write " + failed->path + ": " + failed->reason + "; " +
                                    std::to_string(failed->bytes_lost) + " bytes are lost so far, the job goes on"});
      }
    } else if (const auto* lost = std::get_if<event::ConsoleLost>(&body)) {
      say({Say::Level::error, lost->stream + ": " + lost->reason + "; " + std::to_string(lost->bytes_lost) +
                                  " bytes are not shown so far, the job goes on"});
    } else if (const auto* warning = std::get_if<event::Warning>(&body)) {
      say({Say::Level::warning, warning->text});
    }
    record(std::move(body));
  }

  void say(const Say& what) {
    if (config_.output.quiet && what.level != Say::Level::error) return;
    output_.print("torchup: " + what.text + "\n");
  }

  Task<> finish(Finish action) {
    const Verdict& verdict = action.verdict;
    exit_code_ = exit_code_of(verdict);
    finishing_ = true;
    cgroup_.reset();
    std::optional<IncidentRecorder::Told> told;
    if (failed_attempt_) {
      std::vector<AttemptRecord> history = record_.attempts();
      told = co_await incidents_.tell(std::move(failed_attempt_), verdict.reason, std::move(history));
      tell_not_written(*told);
      record(event::IncidentRecorded{told->path, incident_summary(told->incident)});
    }
    record(event::JobEnded{verdict});
    if (verdict.exit_code != 0) report(action);
    if (verdict.exit_code != 0 && told) {
      output_.print("torchup: " + incident_text(told->incident, local_time_text) +
                    (told->path.empty() ? "" : "  all of it: " + told->path + "\n"));
    }
    std::string last_words;
    if (verdict.exit_code != 0) last_words = co_await last_words_for_parent(action);
    if (!last_words.empty()) {
      auto written = co_await output_.disk().replace_file(config_.parent_error_file, std::move(last_words));
      if (!written) say({Say::Level::error, written.error().message()});
    }
    if (!config_.output.result_file.empty() || log_failure_told_) {
      co_await output_.settle(finish_limit);  // what was lost belongs into the result
    }
    if (const std::uint64_t lost = record_.log_bytes_lost(); lost != 0)
      say({Say::Level::error, std::to_string(lost) + " bytes of logs and events are lost in all"});
    co_await write_result();
    // Whoever reads our output with a pager may take hours over it; the other nodes need not wait for that.
    const auto patience = verdict.exit_code > 128 ? Output::Patience::limited : Output::Patience::as_cat;
    link_->finish(linger_limit, [this, patience] { spawn(loop_, "finish output", finish_output(patience)); });
  }

  Task<> finish_output(Output::Patience patience) {
    co_await output_.finish(finish_limit, patience);
    co_await write_result();
    loop_.stop();
  }

  /// Once more when something is lost after the first time.
  Task<> write_result() {
    if (config_.output.result_file.empty()) co_return;
    std::string content = result_json(record_, host_);
    if (content == result_) co_return;
    result_ = content;
    auto written = co_await output_.disk().replace_file(config_.output.result_file, std::move(content));
    if (!written) say({Say::Level::error, written.error().message()});
  }

  [[nodiscard]] int exit_code_of(const Verdict& verdict) const {
    if (!config_.propagate_exit_code || verdict.exit_code != 1 || verdict.failures.empty()) return verdict.exit_code;
    const int code = verdict.failures.front().exit_code;
    return code < 0 ? 128 - code : code;
  }

  [[nodiscard]] std::string signal_text(const Verdict& verdict) const {
    return "SignalException: Process " + std::to_string(guarded_.outer) +
           " got signal: " + std::to_string(verdict.exit_code - 128);
  }

  /// What all nodes tell of, the job's root cause in front; then what only this node knows: its workers that were
  /// stopped.
  static std::vector<WorkerFailure> all_failures(const Finish& action) {
    std::vector<WorkerFailure> all = action.verdict.failures;
    for (const WorkerFailure& own : action.local_failures) {
      const bool told = std::any_of(all.begin(), all.end(), [&](const auto& known) { return known.rank == own.rank; });
      if (!told) all.push_back(own);
    }
    return all;
  }

  void report(const Finish& action) {
    const Verdict& verdict = action.verdict;
    if (verdict.exit_code > 128) {
      output_.print("torch.distributed.elastic.multiprocessing.api." + signal_text(verdict) + "\n");
      return;
    }
    const auto failures = all_failures(action);
    // Without a failure in the verdict the job was ended for another reason, and workers that died of it are no news.
    if (verdict.failures.empty()) {
      output_.print("torchup: " + verdict.reason + "\n");
      return;
    }
    output_.print("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: " +
                  exit_report(config_.program.title, failures, local_time_text) + "\n");
  }

  /// What goes into the error file of whoever started us; empty when nothing does.
  Task<std::string> last_words_for_parent(const Finish& action) {
    const Verdict& verdict = action.verdict;
    const std::int64_t now_s = utc_now() / 1'000'000;
    if (verdict.exit_code > 128 || action.local_failures.empty()) {
      if (config_.parent_error_file.empty()) co_return "";
      const std::string text = verdict.exit_code > 128 ? signal_text(verdict) : verdict.reason;
      co_return make_error_file(text, text, now_s);
    }
    const WorkerFailure& cause = action.local_failures.at(root_cause(action.local_failures));
    if (cause.error_file.empty()) co_return "";
    if (config_.parent_error_file.empty()) {
      say({Say::Level::error, "no error file defined for parent, to copy child error file (" + cause.error_file + ")"});
      co_return "";
    }
    const LastWords words = co_await output_.read_last_words(cause.error_file);
    if (!words.error) co_return "";
    if (!words.error->structured) {
      say({Say::Level::warning,
           "child error file (" + cause.error_file + ") has a new message format. \nskipping error code override"});
    }
    co_return with_error_code(*words.bytes, cause.exit_code);
  }

  const LaunchConfig& config_;
  Guarded guarded_;
  const std::string host_;
  const WorkerEnvironment environment_;
  asio::io_context loop_{1};
  asio::steady_timer timer_{loop_};
  asio::steady_timer sweep_timer_{loop_};
  asio::steady_timer step_timer_{loop_};
  asio::steady_timer state_timer_{loop_};
  StateWatch state_watch_;
  std::optional<StepWatch> step_watch_;  ///< of the running attempt
  Descriptor signals_{loop_};
  Descriptor lifeline_{loop_};
  RunRecord record_;
  std::optional<TorchelasticEvents> torchelastic_events_;
  std::optional<Watchdog> watchdog_;
  std::optional<HealthPort> health_port_;
  Output output_;
  IncidentRecorder incidents_{output_.disk(), config_.rendezvous.run_id.value(), host_,
                              !config_.output.log_dir.empty()};
  Spawner spawner_;
  Agent agent_;
  std::optional<WorkerStore> store_;
  std::unique_ptr<AgentLink> link_;
  std::deque<AgentEvent> events_;
  std::optional<TimePoint> armed_;
  std::unique_ptr<AttemptOutput> attempt_;
  std::unique_ptr<AttemptCgroup> cgroup_;  ///< of the running attempt; nothing: none is ours to make
  int attempts_begun_ = 0;
  std::vector<LocalWorker> workers_;
  int next_worker_ = config_.local_world_size;  ///< the first that is not ordered yet
  int orders_ = 0;                              ///< that the spawner has
  bool drain_ = false;                          ///< of the running attempt is asked for
  Placement placement_;
  std::vector<std::string> socket_variables_;  ///< --set-socket-ifname
  std::string attempt_name_;
  std::shared_ptr<IncidentRecorder::Open> failed_attempt_;  ///< the last attempt's failure, not yet told
  std::string stop_reason_;
  std::optional<TimePoint> log_failure_told_;
  int stop_signal_ = 0;  ///< what the workers of this attempt were told to end by; 0: nothing yet
  bool sweeping_ = false;
  bool sweep_told_ = false;
  TimePoint sweep_until_{};
  bool finishing_ = false;
  std::string result_;  ///< as last written to --result-file
  int exit_code_ = 70;
};

}  // namespace

void run_agent(const LaunchConfig& config, Guarded guarded, const std::string& host) {
  AgentRunner runner{config, std::move(guarded), host};
  const int status = runner.run();
  static_cast<void>(kill_descendants(sweep_limit));
  // Everything is written and nobody is left: threads and sockets are ended by the kernel, faster than one by one.
  ::_exit(status);
}

}  // namespace torchup
