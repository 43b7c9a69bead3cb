#pragma once

#include <torch/types.h>

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace torchup {

/// Exit code that asks a scheduler to start the job again: the state is saved.
inline constexpr int exit_requeue = 75;

/// What a training loop learns at the end of a step.
struct StepEnd {
  bool stop =
      false;  ///< the job is to stop here: every rank is told so after the same step. Save, and exit with exit_requeue
};

/// This process as its job sees it: what the launcher said, the device, and the way to tell how training goes. In each
/// round of Elastic::run it is what the launcher says then.
class Worker {
 public:
  struct State;
  explicit Worker(std::unique_ptr<State> state);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int rank() const;              ///< 0 .. world_size() - 1
  int world_size() const;        ///< 1 when nobody started this program as part of a job
  int local_rank() const;        ///< index on its node
  int local_world_size() const;  ///< workers on its node
  int restart_count() const;     ///< restarts after failures so far
  /// The GPU of this worker, bound as the current one, or the CPU when the machine has not one for each of its workers.
  /// The rule is the process group's too, so group.device() is the same as long as neither is told otherwise; what was
  /// said to the one (WorkerOptions::device) is said to the other by `init_process_group({.device = worker.device()})`.
  /// They differ where the group takes gloo on the CPU because some rank has no GPU of its own: one line says so.
  torch::Device device() const;

  /// Call at the end of every step, with the number of steps done, equally often on every rank. It is the heartbeat
  /// that the launcher's --hang-timeout watches, and names the step in reports of failures. Costs no system call.
  ///
  /// When the job is asked to stop (options.stop_signal at any rank, or a drain by the launcher), all ranks get `stop`
  /// after the same step, however far they are apart: save, and leave with exit_requeue.
  StepEnd end_step(std::int64_t step);

 private:
  friend struct WorkerAccess;
  std::unique_ptr<State> state_;
};

/// A training program's body. `arguments` is the command line with the program's name first (so that it can be handed
/// to any parser as argc, argv) and without what the launcher added to it. The result is the exit code.
using Train = std::function<int(Worker& worker, std::span<char*> arguments)>;

struct WorkerOptions {
  std::string device = "auto";  ///< "auto", "cpu", or "cuda": an error when this worker has no GPU of its own
  /// Asks the job to stop: Slurm's --signal=USR1@120, or `kill -USR1` of the launcher, which passes it on. One rank
  /// that got it is enough. 0: none.
  int stop_signal = SIGUSR1;
};

/// Runs `train` as a good worker. Call it straight from main, whose result it is.
///
/// Reads the launcher's environment (torchup, torchrun, srun, mpirun, hand-set variables), binds the device, takes
/// --local-rank N and --local_rank=N off the command line. Without any launcher the program runs alone as rank 0 of 1,
/// and says so. A part of the variables, or contradictions, are an Error.
///
/// Exceptions are deliberately not caught, so that the stack of the throw is still there when the last words are
/// written: the process then writes torchelastic's error file and a report on stderr (message, native backtrace, rank,
/// host, step) and exits with 1. Fatal signals leave the same file; the process dies of the signal. See last words in
/// README.
int worker_main(int argc, char** argv, const Train& train, const WorkerOptions& options = {});

}  // namespace torchup
