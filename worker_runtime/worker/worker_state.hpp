#pragma once

#include <torch/types.h>

#include <memory>
#include <optional>

#include "torchup/worker.hpp"
#include "worker_runtime/place/agent_channel.hpp"
#include "worker_runtime/place/worker_page.hpp"
#include "worker_runtime/place/worker_place.hpp"
#include "worker_runtime/worker/last_words.hpp"
#include "worker_runtime/worker/look_answerer.hpp"
#include "worker_runtime/worker/stop_agreement.hpp"

namespace torchup {

struct Worker::State {
  WorkerPlace place;
  std::optional<int> asked_local_rank;  ///< on the command line
  torch::Device device{torch::kCPU};
  Speaker speaker;
  std::unique_ptr<WorkerPage> page;
  std::unique_ptr<AgentChannel> channel;   ///< null: the agent does not speak with us
  std::unique_ptr<LookAnswerer> answerer;  ///< null: no agent wants to know how far we are
  std::unique_ptr<StopAgreement> stop;     ///< of the round; null between two
  int elastic_runs = 0;                    ///< calls of Elastic::run so far
  bool is_in_elastic_run = false;

  /// A signal that asks the job to stop at a step's end. A handler of the program's own is left alone.
  static void listen_for_stop(int signal);
  /// As the environment has it by now: ranks, restart count, where last words go.
  void take_place();
  /// The ranks of the place agree on stops from here on, in the `run`-th call of Elastic::run; 0: before.
  void begin_round(int run);
};

/// The state behind a worker, for the rooms of this library.
struct WorkerAccess {
  static Worker::State& state(Worker& worker) { return *worker.state_; }
};

}  // namespace torchup
