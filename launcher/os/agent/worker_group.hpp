#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "launcher/core/agent/agent.hpp"
#include "launcher/core/plan/worker_environment.hpp"
#include "launcher/os/agent/incident_recorder.hpp"
#include "launcher/os/diagnosis/look_order.hpp"
#include "launcher/os/machine/own_environment.hpp"
#include "launcher/os/output/worker_output.hpp"
#include "launcher/os/worker/hook_folder.hpp"
#include "launcher/os/worker/spawner.hpp"
#include "launcher/os/worker/template_process.hpp"
#include "launcher/os/worker/worker.hpp"

namespace torchup {

/// A living worker whose page says that an exception has left its program.
struct RaisedWorker {
  LocalRank local_rank{0};
  pid_t pid = 0;
  std::int64_t raised_at_ns = 0;
};

/// This node's workers: in which order they are started, and what is sent to them. Decides nothing: the agent machine
/// says what is to be done, and hears what became of it. Lives on the loop.
class WorkerGroup {
 public:
  struct Listener {
    /// WorkerStarted, SpawnFailed, WorkerNotStarted, WorkerSaid.
    std::function<void(AgentEvent)> tell;
    /// What a worker has answered to `look`; empty: nobody asks.
    std::function<void(LocalRank, const WorkerLooked&)> looked = {};
    /// worker_started, warning, notice.
    std::function<void(EventBody)> record;
    /// A worker's process is gone and reaped.
    std::function<void(const WorkerId& worker, int exit_code, WorkerRemains remains)> ended;
  };
  WorkerGroup(asio::io_context& loop, const LaunchConfig& config, Heritage heritage, Listener listener);

  /// What --preload needs of the others.
  struct Preload {
    std::function<Result<std::array<UniqueFd, 2>>()> streams;  ///< for the output of the template process
    std::function<int()> next_cgroup;                          ///< as in ChildRequest, for the next attempt
    std::function<void()> reaped;                              ///< one of `spared` or `forked` was
  };
  /// Starts the process from which workers are forked from then on.
  void preload(Preload how);
  /// From now on these live on when an attempt is swept.
  void keep(std::vector<LocalRank> workers) { kept_ = std::move(workers); }
  /// What does: they, what they have started and left, the template process and what is parked.
  [[nodiscard]] std::vector<pid_t> spared() const;
  /// Ends these.
  void end_preload();

  /// Does what takes time and no worker is needed for: the hook's folder, their environment. A start does it otherwise.
  void prepare();
  /// No worker is started any more, and none lives.
  void remove_hook() { hook_.reset(); }

  /// How workers of one attempt are started.
  struct Start {
    Placement placement;
    AttemptOutput* output = nullptr;
    std::vector<std::string> variables;  ///< beyond the contract's, "NAME=value" each
    std::vector<LocalRank> kept;         ///< that live, and are told their place
    int cgroup = -1;                     ///< as in ChildRequest
  };
  /// An attempt begins, whose workers are started before long.
  void renew();
  /// Starts all, in local rank order, but those that are kept.
  void start(Start how);
  /// Whether the attempt was told to end before all of its workers were ordered.
  [[nodiscard]] bool cancelled() const { return cancelled_; }
  /// Whether some are still to be started, or being started.
  [[nodiscard]] bool starting() const { return next_ < config_.local_world_size || orders_ > 0; }
  /// Whoever is not ordered yet is not started any more in this attempt.
  void cancel_starts();
  /// SIGKILL to whoever is being started.
  void end_births() { spawner_.end_births(); }
  void signal(std::span<const LocalRank> workers, int number, bool ends);
  void signal_all(int number);
  /// To this worker's group, if it still is that process; false: it is gone, or nobody may signal it.
  bool signal_process(LocalRank local_rank, std::int64_t pid, int number);
  void drain(int number, bool insist);
  void end_round(const EndRound& action);
  void blame(LocalRank local_rank);
  void abort(std::span<const LocalRank> workers);
  void kill(std::span<const LocalRank> workers);

  [[nodiscard]] std::vector<LivingWorker> living() const;
  /// Forked ones, which are children of this process's main thread.
  [[nodiscard]] std::vector<pid_t> forked() const;
  [[nodiscard]] std::vector<RaisedWorker> raised() const;
  [[nodiscard]] std::vector<StepSample> steps() const;
  [[nodiscard]] std::vector<StateSample> states() const;
  /// All that live, as a look finds them. Their `ask` must not outlive this.
  [[nodiscard]] std::vector<LookedAt> looked_at();
  /// The worker that this process is or comes from.
  [[nodiscard]] std::optional<LocalRank> owner_of(pid_t pid) const;

 private:
  void make_hook();
  void order_workers();
  void order(LocalRank local_rank);
  void exec(ChildRequest request, Spawner::Handler handler);
  void place(LocalRank local_rank);
  /// What was ordered, kept until the spawner answers: the attempt's output may have gone by then.
  struct Order {
    WorkerId worker;
    std::optional<SharedPage> page;
    std::string stdout_log;
    std::string stderr_log;
  };
  void on_spawned(Order& order, Result<ChildProcess> child);
  [[nodiscard]] Worker::Listener worker_listener(LocalRank local_rank);
  Worker* find(LocalRank local_rank) const { return workers_.at(static_cast<std::size_t>(local_rank.value())).get(); }

  asio::io_context& loop_;
  const LaunchConfig& config_;
  const Heritage heritage_;                       ///< of the workers
  std::optional<HookFolder> hook_;                ///< empty: they have none
  std::optional<WorkerEnvironment> environment_;  ///< empty: nothing is prepared
  Listener listener_;
  Spawner spawner_;
  std::unique_ptr<TemplateProcess> template_;  ///< of --preload; null: workers are executed
  std::function<void()> reaped_;               ///< as in Preload; empty: without it
  Start start_;
  std::vector<LocalRank> kept_;
  std::vector<std::unique_ptr<Worker>> workers_;  ///< index: local rank; null: none lives
  std::vector<std::string> error_files_;          ///< likewise
  int next_;                                      ///< the first local rank that is not ordered yet
  int orders_ = 0;                                ///< that the spawner has
  std::set<int> for_started_;                     ///< signals for all that came since it has any
  bool cancelled_ = false;
  bool drain_ = false;           ///< of the running attempt is asked for
  bool cgroup_refused_ = false;  ///< and said so
};

}  // namespace torchup
