#include <algorithm>
#include <utility>

#include "launcher/core/machine/devices.hpp"
#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/scheduler/derived_options.hpp"
#include "launcher/core/scheduler/detection.hpp"
#include "launcher/core/scheduler/visible_count.hpp"

namespace torchup {

int count_visible_gpus(const Machine& machine, const OptionValues& options, LaunchConfig& plan) {
  plan.preflight.gpus_asked = true;
  plan.preflight.gpus_found = machine.gpus();
  const Gpus& gpus = plan.preflight.gpus_found;
  const auto devices = visible_devices(gpus, machine.variable(cuda_devices));
  return options.flag("virtual-local-rank") ? static_cast<int>(devices.size()) : usable_in_one_process(gpus, devices);
}

Result<> hear_scheduler(const Machine& machine, OptionValues& options, LaunchConfig& plan) {
  const std::string wanted = options.text("scheduler", "auto");
  if (wanted == "none") return {};
  const auto found = find_allocation(wanted, {machine.variable, machine.file, machine.host, machine.starter});
  if (!found) return found.error();
  derive_grace(machine.variable, options);
  plan.scheduler.asked = true;
  if (!*found) return {};
  const auto visible_gpus = [&] { return count_visible_gpus(machine, options, plan); };
  auto part = derive_options(**found, visible_gpus, options);
  if (!part) return part.error();
  plan.scheduler = *std::move(part);
  plan.scheduler.asked = true;
  plan.merged_output = plan.scheduler.node.has_value();
  for (const std::string& warning : plan.scheduler.warnings) warn(plan, warning);
  return {};
}

void bind_to_seats(SeatedWorkers seated, LaunchConfig& plan) {
  if (plan.worker_cpus.empty()) plan.worker_cpus = std::move(seated.cpus);
  const auto chosen = [](const auto& variable) { return variable.first == cuda_devices; };  // --gpus
  if (seated.devices && std::ranges::none_of(plan.variables, chosen)) {
    plan.variables.emplace_back(cuda_devices, *std::move(seated.devices));
  }
}

void name_origins(const PlanSource& source, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  PlanOrigins& origins = plan.origins;
  origins.nodes = options.source("nnodes");
  origins.workers = options.source("nproc-per-node");
  const bool by_option = plan.rendezvous.backend == Backend::static_;  // the others have their index
  origins.node_rank = by_option ? options.source("node-rank") : plan.scheduler.node_from;
  origins.run_id = options.source("rdzv-id");
  origins.endpoint = options.source(options.has("rdzv-endpoint") ? "rdzv-endpoint"
                                    : options.has("master-addr") ? "master-addr"
                                                                 : "master-port");
  origins.deadline = options.source("deadline");
  const char* const grace_variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  const bool by_variable = !options.has("shutdown-timeout") && source.machine.variable(grace_variable);
  origins.shutdown_timeout = by_variable ? grace_variable : options.source("shutdown-timeout");
}

}  // namespace torchup
