#include "launcher/core/plan/worker_environment.hpp"

#include <algorithm>
#include <utility>

#include "launcher/core/scheduler/task_identity.hpp"
#include "rendezvous/base/template_mark.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/base/worker_page.hpp"

namespace torchup {
namespace {

std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

std::vector<std::string> to_lines(const Variables& variables) {
  std::vector<std::string> lines;
  lines.reserve(variables.size());
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

constexpr std::string_view python_path = "PYTHONPATH=";

/// The hook takes itself out again. (One of the user's own that is empty is none then.)
std::string with_hook(std::string_view hook, const std::vector<std::string>& inherited) {
  std::string line{python_path};
  line += hook;
  const auto own = std::ranges::find_if(inherited, [](const auto& entry) { return entry.starts_with(python_path); });
  if (own != inherited.end() && own->size() > python_path.size()) line.append(":").append(*own, python_path.size());
  return line;
}

}  // namespace

WorkerEnv worker_env(const LaunchConfig& config, const Placement& placement, LocalRank local_rank,
                     std::string error_file) {
  WorkerEnv env;
  env.rank = Rank{placement.first_rank.value() + local_rank.value()};
  env.local_rank = config.virtual_local_rank ? LocalRank{0} : local_rank;
  env.group_rank = placement.group_rank;
  env.role_rank = Rank{placement.first_role_rank.value() + local_rank.value()};
  env.role_name = config.role;
  env.local_world_size = config.local_world_size;
  env.world_size = placement.world_size;
  env.group_world_size = placement.group_world_size;
  env.role_world_size = placement.role_world_size;
  env.master_addr = placement.master_addr;
  env.master_port = placement.master_port;
  if (config.rendezvous.backend == Backend::static_) {
    env.master_addr = config.rendezvous.endpoint->host;
    env.master_port = config.rendezvous.endpoint->port;
  }
  if (placement.local_store.value() != 0) {
    env.master_addr = "127.0.0.1";
    env.master_port = placement.local_store;
  }
  env.restart_count = placement.restart_count;
  env.max_restarts = config.terms.max_restarts;
  env.run_id = config.rendezvous.run_id.value();
  env.use_agent_store = config.share_store;
  env.error_file = std::move(error_file);
  return env;
}

WorkerEnvironment::WorkerEnvironment(const LaunchConfig& config, const std::vector<std::string>& inherited,
                                     std::string_view hook)
    : config_{config}, common_{config.variables} {
  const auto inherits = [&](std::string_view name) {
    return std::any_of(inherited.begin(), inherited.end(), [&](const auto& entry) { return name_of(entry) == name; });
  };
  if (!inherits("TORCH_NCCL_ASYNC_ERROR_HANDLING")) common_.emplace_back("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  common_.emplace_back("TORCHELASTIC_SIGNALS_TO_HANDLE", config.signals_to_handle);

  // The page and the channel that we ourselves were given are not the workers'.
  std::vector<std::string_view> replaced{token_variable, worker_page_variable, worker_channel_variable,
                                         template_variable, master_addr_variable};
  const Variables contract = to_variables(WorkerEnv{});
  for (const auto& [name, value] : contract) replaced.push_back(name);
  for (const auto& [name, value] : common_) replaced.push_back(name);
  if (!config.worker_variables.empty()) {
    for (const auto& [name, value] : config.worker_variables.front()) replaced.push_back(name);
  }
  std::vector<std::string> lines = to_lines(common_);
  if (!hook.empty()) {
    lines.push_back(with_hook(hook, inherited));
    replaced.push_back(name_of(python_path));
  }
  tasks_per_node_ = inherits("SLURM_NTASKS_PER_NODE");
  for (const std::string& entry : inherited) {
    if (is_own_place(name_of(entry), config.scheduler)) continue;
    if (std::find(replaced.begin(), replaced.end(), name_of(entry)) == replaced.end()) lines.push_back(entry);
  }
  common_lines_ = std::make_shared<const std::vector<std::string>>(std::move(lines));
}

Variables WorkerEnvironment::own_variables(const Placement& placement, LocalRank local_rank,
                                           std::string error_file) const {
  const WorkerEnv worker = worker_env(config_, placement, local_rank, std::move(error_file));
  Variables variables = to_variables(worker);
  const bool fixed = config_.rendezvous.backend == Backend::static_;
  variables.emplace_back(master_addr_variable, fixed ? config_.rendezvous.endpoint->host : placement.master_addr);
  if (config_.scheduler.slurm_step) {
    const Variables task = task_variables(worker, tasks_per_node_);
    variables.insert(variables.end(), task.begin(), task.end());
  }
  if (!config_.worker_variables.empty()) {
    const Variables& more = config_.worker_variables.at(static_cast<std::size_t>(local_rank.value()));
    variables.insert(variables.end(), more.begin(), more.end());
  }
  return variables;
}

std::vector<std::string> WorkerEnvironment::own(const Placement& placement, LocalRank local_rank,
                                                std::string error_file) const {
  return to_lines(own_variables(placement, local_rank, std::move(error_file)));
}

Variables WorkerEnvironment::changes(const Placement& placement, LocalRank local_rank, std::string error_file) const {
  Variables variables = own_variables(placement, local_rank, std::move(error_file));
  variables.insert(variables.end(), common_.begin(), common_.end());
  return variables;
}

}  // namespace torchup
