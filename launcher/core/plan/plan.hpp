#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/options/option_values.hpp"
#include "launcher/core/plan/worker_command.hpp"
#include "launcher/core/plan/worker_count.hpp"
#include "launcher/core/scheduler/seat.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/worker_env.hpp"
#include "rendezvous/core/link/link_codec.hpp"

namespace torchup {

/// What the agent of one host of a fan-out was told by its front.
struct LinkedNode {
  LinkPlan plan;
  std::function<std::string()> address;  ///< by which the other hosts reach this one; empty: found out. May take long
  int connection = -1;                   ///< to the front's coordinator; -1: the coordinator is elsewhere
};

/// What the plan asks of the machine. The shell looks it up, each at most once and only when it is needed: asking the
/// GPU driver takes longer than starting workers.
struct Machine {
  VariableLookup variable;
  ProgramLookup program;
  PythonLookup pythons;
  std::function<Result<Cpus>(bool with_topology)> cpus;
  std::function<Gpus()> gpus;
  std::function<std::string()> random_run_id;  ///< a UUID
  std::function<std::int64_t()> unix_seconds;  ///< the day's clock
  /// What squeue, the program at `path`, says of a job's time (core/scheduler/slurm_job). Errors: it says nothing.
  std::function<Result<std::string>(const std::string& path, const std::string& job)> time_left;
  std::string host;                                                    ///< as gethostname gives it
  std::function<std::string()> starter;                                ///< as SchedulerFacts::starter
  std::function<Result<std::string>(const std::string& path)> script;  ///< the content of --rehearse=@FILE
  /// The start of a plain file that a scheduler wrote, with more than `bytes_max` bytes where it is longer.
  std::function<Result<std::string>(const std::string& path, std::size_t bytes_max)> file;
  std::function<bool(const std::string& path)> writable;  ///< whether that file is there, and we may write to it
  std::optional<LinkedNode> linked;                       ///< this agent is one of a fan-out's
  std::optional<RehearsedNode> rehearsed;                 ///< which node of --rehearse-nodes this is
};

/// How our own lines are to be written, known before there is a plan: a refusal is such a line too.
[[nodiscard]] LogWords log_words(const OptionValues& options);

/// Turns options and program words into the plan of this agent: all checks of all options, in torchrun's order.
///
/// Errors: errc::bad_value, one line for people; errc::refused when the machine lacks GPUs that were asked for by name
/// (exit code 65).
/// Source: torchrun, torch/distributed/run.py, config_from_args.
[[nodiscard]] Result<LaunchConfig> make_plan(const OptionValues& options, const std::vector<std::string>& words,
                                             bool legacy, const Machine& machine);

/// Asks Slurm when the time of the job ends, where nobody else says so and --stop-before wants to know: once for a
/// node, by its agent.
///
/// Errors: errc::bad_value: that is not known, or too soon. Where the first of several nodes does not know it, it gives
/// up (LaunchConfig::gives_up); one behind it does without (StopBefore::untold), and is warned.
Result<> learn_deadline(const Machine& machine, LaunchConfig& plan);

/// Binds the workers of a plan as the scheduler bound the tasks of this node. What the user has bound, stays.
void bind_to_seats(SeatedWorkers seated, LaunchConfig& plan);

}  // namespace torchup
