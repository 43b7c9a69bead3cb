#include <fmt/format.h>

#include "launcher/core/machine/numa_binding.hpp"
#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/scheduler/visible_count.hpp"

namespace torchup {
namespace {

/// The GPUs that are asked for, by number or by name.
struct ChosenGpus {
  bool by_name = false;  ///< --gpus
  Gpus all;
  std::vector<Device> devices;  ///< those of our workers
  bool lost = false;  ///< one is, and the driver's list is empty for it: the node is unfit, and says so itself
};

Result<ChosenGpus> choose_gpus(const PlanSource& source, const WorkerCountRule& rule, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  ChosenGpus chosen;
  chosen.by_name = options.has("gpus");
  if (!chosen.by_name && !rule.needs_gpus() && !options.has("numa-binding")) return chosen;
  chosen.all = machine.gpus();
  plan.preflight.gpus_asked = true;
  plan.preflight.gpus_found = chosen.all;
  chosen.lost = chosen.all.any_lost();
  chosen.devices = visible_devices(chosen.all, machine.variable(cuda_devices));
  if (!chosen.by_name) return chosen;
  auto named = choose_devices(options.text("gpus"), chosen.all, chosen.devices);
  if (!named && chosen.lost && named.error().code == make_error_code(errc::refused)) {
    plan.variables.emplace_back(cuda_devices, options.text("gpus"));  // for when it is there again
    return chosen;
  }
  if (!named) return named.error();
  chosen.devices = *std::move(named);
  plan.variables.emplace_back(cuda_devices, to_variable(chosen.devices));
  return chosen;
}

/// Fewer GPUs than workers: refused where they were asked for by name, else told.
Result<> check_shortage(const OptionValues& options, const WorkerCountRule& rule, const ChosenGpus& gpus,
                        LaunchConfig& plan) {
  if (gpus.lost || (!gpus.by_name && !rule.needs_gpus())) return {};
  const auto shortage = gpu_shortage(plan.local_world_size, static_cast<int>(gpus.devices.size()), gpus.by_name,
                                     options.flag("oversubscribe"));
  if (!shortage) return {};
  if (shortage->refuse) return fail(errc::refused, shortage->text);
  warn(plan, shortage->text);
  return {};
}

Result<> bind_workers(const OptionValues& options, const Cpus& cpus, const ChosenGpus& gpus, LaunchConfig& plan) {
  if (!options.has("numa-binding")) return {};
  auto mode = parse_numa_binding(options.text("numa-binding"));
  if (!mode) return mode.error();
  if (gpus.lost) return {};
  std::vector<int> nodes;
  for (const Device& device : gpus.devices) nodes.push_back(gpus.all.list.at(device.gpu).numa_node);
  for (int local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
    auto bound = numa_cpus(*mode, LocalRank{local_rank}, cpus, nodes);
    if (!bound) return bound.error();
    plan.worker_cpus.push_back(*std::move(bound));
  }
  return {};
}

void share_out_threads(const PlanSource& source, const OmpRule& rule, int cores, LaunchConfig& plan) {
  const bool inherited = source.machine.variable("OMP_NUM_THREADS").has_value();
  const OmpChoice omp = omp_num_threads(rule, inherited, plan.local_world_size, cores);
  if (omp.value) plan.variables.emplace_back("OMP_NUM_THREADS", *omp.value);
  if (omp.warn && plan.tells_for_all())
    warn(plan, "OMP_NUM_THREADS=1 for each worker; set it, or --omp auto, for more threads");
}

}  // namespace

Result<> plan_workers(const PlanSource& source, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  const auto rule = parse_worker_count(options.text("nproc-per-node", "1"));
  if (!rule) return rule.error();
  plan.virtual_local_rank = options.flag("virtual-local-rank");
  const auto gpus = choose_gpus(source, *rule, plan);
  if (!gpus) return gpus.error();
  const auto omp = options.has("omp") ? parse_omp(options.text("omp")) : Result<OmpRule>{OmpRule{}};
  if (!omp) return omp.error();

  const bool topology = options.has("numa-binding") || omp->kind == OmpRule::Kind::automatic;
  const bool counted = rule->kind == WorkerCountRule::Kind::cpu || rule->kind == WorkerCountRule::Kind::automatic;
  const bool needs_cpus = topology || counted;
  const auto cpus = needs_cpus ? machine.cpus(topology) : Result<Cpus>{Cpus{}};
  if (!cpus) return cpus.error();

  const auto count = worker_count(*rule, *cpus, gpus->all, gpus->devices, plan.virtual_local_rank);
  if (!count) return count.error();
  plan.local_world_size = *count;
  for (const Device& device : gpus->devices) plan.preflight.gpus.push_back(static_cast<int>(device.gpu));
  if (auto checked = check_shortage(options, *rule, *gpus, plan); !checked) return checked;
  if (auto bound = bind_workers(options, *cpus, *gpus, plan); !bound) return bound;
  share_out_threads(source, *omp, needs_cpus ? usable_cores(*cpus, cpus->allowed) : 1, plan);
  return {};
}

Result<> plan_virtual_ranks(const PlanSource& source, LaunchConfig& plan) {
  if (!plan.virtual_local_rank) return {};
  std::optional<std::string> cuda = source.machine.variable(cuda_devices);
  for (const auto& [name, value] : plan.variables) {
    if (name == cuda_devices) cuda = value;
  }
  const auto hip = source.machine.variable("HIP_VISIBLE_DEVICES");
  for (int local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
    auto variables = virtual_rank_variables(LocalRank{local_rank}, cuda, hip);
    if (!variables) return variables.error();
    plan.worker_variables.push_back(*std::move(variables));
  }
  std::erase_if(plan.variables, [](const auto& variable) { return variable.first == cuda_devices; });
  return {};
}

}  // namespace torchup
