#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "launcher/core/scheduler/rows.hpp"
#include "launcher/core/scheduler/slurm_job.hpp"
#include "launcher/core/scheduler/visible_count.hpp"
#include "rendezvous/base/slurm_counts.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup::scheduler {
namespace {

constexpr std::int64_t own_steps_from = 4294967290;  ///< Slurm's: of batch script, shells and external processes
constexpr std::int64_t ids_max = 4294967295;
constexpr std::int64_t het_components_max = 128;
constexpr std::int64_t unix_seconds_max = std::int64_t{1} << 40;
constexpr int tasks_per_node_max = 1024;

bool same(const ToldWords& words, std::string_view left, std::string_view right) {
  const auto value = words.text(left);
  return value && value == words.text(right);
}

/// A heterogeneous job has a list for each component, and a step may span them.
Result<std::vector<std::string>> hosts_of_job(const ToldWords& words) {
  auto hosts = words.hosts("SLURM_JOB_NODELIST");
  const auto components = words.number("SLURM_HET_SIZE", 1, het_components_max);
  if (!hosts || !components) return hosts ? components.error() : hosts.error();
  for (std::int64_t i = 0; i < components->value_or(0); ++i) {
    auto more = words.hosts(fmt::format("SLURM_JOB_NODELIST_HET_GROUP_{}", i));
    if (!more) return more.error();
    hosts->insert(hosts->end(), more->begin(), more->end());
  }
  return hosts;
}

/// Whether the step's variables are those of the step that this process is in.
Result<bool> is_believed(const ToldWords& words) {
  const auto step = words.number("SLURM_STEP_ID", 0, ids_max);
  if (!step) return step.error();
  if (!*step || **step >= own_steps_from || !words.has("SLURM_JOB_ID")) return false;
  if (!same(words, "SLURM_NNODES", "SLURM_STEP_NUM_NODES") || !same(words, "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS") ||
      !same(words, "SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE")) {
    return false;
  }
  const auto hosts = words.hosts("SLURM_STEP_NODELIST");
  const auto of_job = hosts_of_job(words);
  const auto node = words.number("SLURM_NODEID", 0, nodes_max);
  if (!hosts || !of_job || !node) return !hosts ? hosts.error() : !of_job ? of_job.error() : node.error();
  const std::unordered_set<std::string> known(of_job->begin(), of_job->end());
  if (!std::ranges::all_of(*hosts, [&](const std::string& host) { return known.contains(host); })) return false;
  const std::string name = words.text("SLURMD_NODENAME").value_or("");
  const auto index = static_cast<std::size_t>(node->value_or(nodes_max));
  return index < hosts->size() && hosts->at(index) == name;
}

/// The components of a heterogeneous job have a number each; the job, and a step that spans them, have the first one's.
Result<std::int64_t> job_number(const ToldWords& words, bool in_step) {
  const auto own = words.number("SLURM_JOB_ID", 1, ids_max);
  const auto first = words.number("SLURM_JOB_ID_HET_GROUP_0", 1, ids_max);
  if (!own || !first) return own ? first.error() : own.error();
  if (!in_step || !*first) return first->value_or(own->value_or(0));
  const auto hosts = words.hosts("SLURM_STEP_NODELIST");
  const auto component = words.hosts("SLURM_JOB_NODELIST");
  if (!hosts || !component) return hosts ? component.error() : hosts.error();
  const std::unordered_set<std::string> known(component->begin(), component->end());
  const bool spans = !std::ranges::all_of(*hosts, [&](const std::string& host) { return known.contains(host); });
  return spans ? **first : own->value_or(0);
}

Result<std::string> run_id(const ToldWords& words, bool in_step) {
  const auto restarts = words.number("SLURM_RESTART_COUNT", 0, requeues_max);
  const auto job = job_number(words, in_step);
  if (!restarts || !job) return restarts ? job.error() : restarts.error();
  return fmt::format("slurm.{}.{}{}.{}", words.text("SLURM_CLUSTER_NAME").value_or("cluster"), *job,
                     in_step ? "." + *words.text("SLURM_STEP_ID") : "", restarts->value_or(0));
}

/// What step and job have in common.
Result<Allocation> begin_with(const ToldWords& words, bool in_step) {
  Allocation found{.scheduler = "slurm", .each = in_step};
  auto id = run_id(words, in_step);
  if (!id) return id.error();
  found.run_id =
      Told<std::string>{*std::move(id), in_step ? "SLURM_CLUSTER_NAME, SLURM_JOB_ID, SLURM_STEP_ID, SLURM_RESTART_COUNT"
                                                : "SLURM_CLUSTER_NAME, SLURM_JOB_ID, SLURM_RESTART_COUNT"};
  found.own_run = in_step;
  const auto end = words.number("SLURM_JOB_END_TIME", 0, unix_seconds_max);
  const auto gpus = words.number("SLURM_GPUS_ON_NODE", 0, local_workers_max);
  if (!end || !gpus) return !end ? end.error() : gpus.error();
  if (*end) found.end = Told<std::int64_t>{**end, "SLURM_JOB_END_TIME"};
  if (*gpus) found.gpus_of_node = static_cast<int>(**gpus);
  if (const auto visible = words.raw(cuda_devices)) {
    found.gpus = Told<int>{visible_count(*visible), std::string{cuda_devices}};
  } else if (*gpus) {
    found.gpus = Told<int>{static_cast<int>(**gpus), "SLURM_GPUS_ON_NODE"};
  }
  found.own_name = words.text("SLURMD_NODENAME").value_or(in_step ? "" : words.host());  // salloc's shell has none
  return found;
}

/// How many tasks of the step are here, and which of them this is.
Result<> read_tasks(const ToldWords& words, Allocation& found) {
  constexpr std::string_view name = "SLURM_STEP_TASKS_PER_NODE";
  const std::string text = words.text(name).value_or("");
  const auto counts = read_slurm_counts(text);
  if (!counts) return wrong(name, text, "it " + counts.error().message());
  const auto here = tasks_of_node(*counts, found.node->value);
  std::int64_t nodes = 0, tasks = 0;
  for (const SlurmCount& count : *counts) {
    nodes += count.nodes;
    tasks += std::int64_t{count.nodes} * count.tasks;
  }
  if (!here || nodes != found.nodes->value) {
    return wrong(name, text, fmt::format("it counts {} nodes, and SLURM_STEP_NUM_NODES={}", nodes, found.nodes->value));
  }
  const auto all = words.number("SLURM_STEP_NUM_TASKS", 1, std::int64_t{1} << 31);
  if (!all) return all.error();
  if (*all != tasks) {
    return wrong(name, text, fmt::format("it counts {} tasks, and SLURM_STEP_NUM_TASKS={}", tasks, all->value_or(0)));
  }
  if (*here > tasks_per_node_max) {
    return wrong(name, text, fmt::format("{} tasks on a node are more than {}", *here, tasks_per_node_max));
  }
  const auto task = words.needed("SLURM_LOCALID", 0, *here - 1);
  if (!task) return task.error();
  found.tasks = {*here, std::string{name}};
  found.task = *task;
  return {};
}

}  // namespace

Result<std::optional<Allocation>> slurm_step_row(const ToldWords& words) {
  if (!words.has("SLURM_STEP_ID")) return std::optional<Allocation>{};
  const auto believed = is_believed(words);
  if (!believed) return believed.error();
  if (!*believed) return std::optional<Allocation>{};
  auto found = begin_with(words, true);
  if (!found) return found.error();
  const auto nodes = words.needed("SLURM_STEP_NUM_NODES", 1, nodes_max);
  auto hosts = words.hosts("SLURM_STEP_NODELIST");
  if (!nodes || !hosts) return nodes ? hosts.error() : nodes.error();
  if (hosts->size() != static_cast<std::size_t>(*nodes)) {
    return wrong("SLURM_STEP_NUM_NODES", *words.text("SLURM_STEP_NUM_NODES"),
                 fmt::format("SLURM_STEP_NODELIST has {} hosts", hosts->size()));
  }
  found->nodes = Told<int>{*nodes, "SLURM_STEP_NUM_NODES"};
  const auto node = words.needed("SLURM_NODEID", 0, *nodes - 1);
  if (!node) return node.error();
  found->node = Told<int>{*node, "SLURM_NODEID"};
  if (auto read = read_tasks(words, *found); !read) return read.error();
  found->first_host = Told<std::string>{hosts->front(), "SLURM_STEP_NODELIST"};
  found->hosts = Told<std::vector<std::string>>{*std::move(hosts), "SLURM_STEP_NODELIST"};
  return std::optional{*std::move(found)};
}

Result<std::optional<Allocation>> slurm_job_row(const ToldWords& words) {
  if (!words.has("SLURM_JOB_ID")) return std::optional<Allocation>{};
  auto found = begin_with(words, false);
  auto hosts = words.hosts("SLURM_JOB_NODELIST");
  if (!found || !hosts) return found ? hosts.error() : found.error();
  if (!hosts->empty()) {
    found->first_host = Told<std::string>{hosts->front(), "SLURM_JOB_NODELIST"};
    found->hosts = Told<std::vector<std::string>>{*std::move(hosts), "SLURM_JOB_NODELIST"};
  }
  return std::optional{*std::move(found)};
}

}  // namespace torchup::scheduler
