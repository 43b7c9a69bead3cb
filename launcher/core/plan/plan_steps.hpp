#pragma once

#include <string>
#include <utility>

#include "launcher/core/plan/plan.hpp"

/// The steps of make_plan, in their order: each reads the options of one subject into the plan. Their errors are those
/// of make_plan.
namespace torchup {

/// What a plan is made from.
struct PlanSource {
  const OptionValues& options;
  const std::vector<std::string>& words;  ///< the program and its arguments
  bool legacy = false;                    ///< torchup-launch
  const Machine& machine;
};

// plan_scheduler.cpp: what the scheduler around us says, before all steps, and where values came from, behind them.
Result<> hear_scheduler(const Machine& machine, OptionValues& options, LaunchConfig& plan);
void name_origins(const PlanSource& source, LaunchConfig& plan);
/// Asks the driver for GPUs; those count that a worker here would see.
[[nodiscard]] int count_visible_gpus(const Machine& machine, const OptionValues& options, LaunchConfig& plan);

// plan_linked.cpp: the place of one host of a fan-out, before all steps, and what of it no option can say, behind them.
void hear_front(const Machine& machine, OptionValues& options, LaunchConfig& plan);
void take_place(const LinkedNode& linked, LaunchConfig& plan);

// plan_meeting.cpp: where the nodes meet, how many they are, in which order.
Result<> plan_backend(const PlanSource& source, LaunchConfig& plan);
Result<> plan_nodes(const PlanSource& source, LaunchConfig& plan);
/// --rdzv-conf.
Result<> plan_conf(const PlanSource& source, LaunchConfig& plan);

// plan_workers.cpp: how many workers, on which devices and CPUs.
Result<> plan_workers(const PlanSource& source, LaunchConfig& plan);
Result<> plan_virtual_ranks(const PlanSource& source, LaunchConfig& plan);

// plan_output.cpp: output, records, log, watchdog, probes.
Result<> plan_output(const PlanSource& source, LaunchConfig& plan);

// plan_operations.cpp: by which doors people see the job.
Result<> plan_operations(const PlanSource& source, LaunchConfig& plan);

// plan_life.cpp: signals, restarts, hangs, stopping.
Result<> plan_hangs(const PlanSource& source, LaunchConfig& plan);
Result<> plan_stop(const PlanSource& source, LaunchConfig& plan);
Result<> plan_signals(const PlanSource& source, LaunchConfig& plan);
Result<> plan_restarts(const PlanSource& source, LaunchConfig& plan);

// plan_stop_time.cpp: --deadline, --stop-before, --requeue.
Result<> plan_stop_time(const PlanSource& source, LaunchConfig& plan);

// plan_checks.cpp: what is looked at before the start.
Result<> plan_checks(const PlanSource& source, LaunchConfig& plan);

// plan_rehearsal.cpp: --rehearse, --rehearse-nodes. After all that says where and how many nodes meet.
Result<> plan_rehearsal(const PlanSource& source, LaunchConfig& plan);

// plan_outside.cpp: what the environment says of the workers' place, and what it does not mean. Warns only.
Result<> plan_outside(const PlanSource& source, LaunchConfig& plan);
// plan_preload.cpp: --preload.
Result<> plan_preload(const PlanSource& source, LaunchConfig& plan);

inline Error bad(std::string text) { return fail(errc::bad_value, std::move(text)); }
inline void warn(LaunchConfig& plan, std::string text) { plan.warnings.push_back(std::move(text)); }
/// As long as a Duration can be, at most.
[[nodiscard]] Duration seconds_of(double seconds);

}  // namespace torchup
