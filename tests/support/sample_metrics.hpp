#pragma once

#include <string>

#include "rendezvous/core/ops/metrics_text.hpp"

namespace torchup {

/// Numbers of which every metric has a sample, and names as strangers choose them.
inline const std::string sample_run_id = "train/\"7\" <b>\\ 節";

inline ProcessNumbers sample_process() {
  return {.version = "0.1.0",
          .cpu_s = 12.5,
          .resident_bytes = 6 << 20,
          .open_fds = 17,
          .max_fds = 1024,
          .started_s = 1.7e9};
}

inline CoordinatorNumbers sample_coordinator() {
  CoordinatorNumbers coordinator;
  coordinator.store = {.connections = 3, .requests = 2};
  coordinator.store.requests_of[static_cast<std::size_t>(Query::get)] = 2;
  coordinator.turns.add(std::chrono::microseconds{30});
  coordinator.agents = 2;
  coordinator.http_requests = {{200, 7}, {401, 1}};
  JobNumbers job{.run_id = sample_run_id, .phase = "running"};
  job.nodes = {{"seated", 2}, {"missing", 1}};
  job.ranks[rank_state_index('r')] = 16;
  job.orders = {{"restart", 1}};
  job.world_size = 16;
  job.min_nodes = 2;
  job.max_nodes = 3;
  job.step = 41'200;
  job.steps_per_second = 3.1;
  job.step_age_s = 0.2;
  job.started_s = 1.7e9;
  job.ledger.add(Spent::useful, 3'600'000'000);
  coordinator.jobs = {job};
  coordinator.late_workers = {{RunId{sample_run_id}, {LateWorker{}}}};
  return coordinator;
}

inline AgentNumbers sample_agent() {
  AgentNumbers agent{.run_id = sample_run_id};
  agent.workers = {{.rank = Rank{8}, .local_rank = LocalRank{0}, .up = true, .step = 41'200, .steps = 900},
                   {.rank = Rank{9}, .local_rank = LocalRank{1}}};
  agent.exits = {{"failed", 1}};
  return agent;
}

/// A running job of so many nodes with eight workers each.
inline JobView large_view(int nodes) {
  JobView view{.phase = "running", .round = Round{4}, .min_nodes = 1, .max_nodes = nodes, .world_size = 8 * nodes};
  for (int i = 0; i < nodes; ++i) {
    const std::string host = "gpu" + std::to_string(10'000 + i) + ".cluster.example";
    view.nodes.push_back({.host = host,
                          .state = "seated",
                          .group_rank = GroupRank{i},
                          .local_world_size = 8,
                          .node = host + "_" + std::to_string(100'000 + i) + "_0",
                          .first_rank = Rank{8 * i}});
  }
  return view;
}

}  // namespace torchup
