#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/scheduler/derived_options.hpp"

namespace torchup {
namespace {

constexpr const char* told_by = "the front";

/// Slots of the host's line, else the GPUs that are chosen, or that it has, else one.
void count_workers(const Machine& machine, const LinkPlan& told, OptionValues& options, LaunchConfig& plan) {
  if (options.has("nproc-per-node")) return;
  if (told.workers > 0) return options.derive("nproc-per-node", fmt::format("{}", told.workers), told_by);
  if (options.has("gpus")) return derive_workers_of_gpus(options);
  const int usable = count_visible_gpus(machine, options, plan);
  options.derive("nproc-per-node", fmt::format("{}", std::max(1, usable)), "visible GPUs");
}

}  // namespace

void hear_front(const Machine& machine, OptionValues& options, LaunchConfig& plan) {
  const LinkPlan& told = machine.linked->plan;
  count_workers(machine, told, options, plan);
  if (told.own_coordinator) {
    options.set("rdzv-backend", "c10d", told_by);
    options.set("rdzv-endpoint", "localhost", told_by);
  } else {
    options.derive("rdzv-backend", "c10d", told_by);
  }
  options.derive("rank-order", std::string{by_index}, told_by);
  plan.scheduler.asked = options.text("scheduler", "auto") != "none";
  plan.scheduler.node = told.node;
  plan.scheduler.node_from = told_by;
  plan.merged_output = plan.behind_front = true;
}

void take_place(const LinkedNode& linked, LaunchConfig& plan) {
  RendezvousConfig& meeting = plan.rendezvous;
  meeting.run_id = linked.plan.run_id;
  meeting.connection = linked.connection;
  if (!plan.one_node()) meeting.local_addr = linked.address();
}

}  // namespace torchup
