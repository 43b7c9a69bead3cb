#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/ops/job_page.hpp"

/// A job as tests of its page have it shown.
namespace torchup {

inline constexpr std::int64_t day_us = 1'700'000'000'000'000;

inline Moment at(Duration since) {
  return {TimePoint{} + since, day_us + std::chrono::duration_cast<std::chrono::microseconds>(since).count()};
}

inline JobView::Node node(const std::string& id, int group_rank, std::string state = "seated") {
  return {.host = "host-" + id,
          .state = std::move(state),
          .group_rank = GroupRank{group_rank},
          .local_world_size = 2,
          .node = id,
          .first_rank = Rank{2 * group_rank}};
}

inline JobView running(std::vector<JobView::Node> nodes) {
  JobView view{.phase = "running",
               .round = Round{3},
               .min_nodes = 1,
               .max_nodes = 4,
               .restart_count = 1,
               .membership_changes = 2,
               .max_restarts = 3,
               .world_size = 2 * static_cast<int>(nodes.size()),
               .master = "10.0.0.1:29500",
               .last = "round 3 runs"};
  view.nodes = std::move(nodes);
  return view;
}

inline NodeReport report(std::string ranks, std::int64_t step, std::int64_t pace = 3100,
                         Duration age = std::chrono::milliseconds{200}) {
  NodeReport report{.ranks = std::move(ranks), .steps = StepReport{step - 1, step, pace, age}};
  report.spent[static_cast<std::size_t>(Spent::useful)] = 1500;
  return report;
}

inline std::set<std::string> names(const nlohmann::json& object) {
  std::set<std::string> all;
  for (const auto& [name, value] : object.items()) all.insert(name);
  return all;
}

inline nlohmann::json snapshot(JobPage& page, Moment now = at(std::chrono::seconds{10}), Right right = Right::control) {
  return nlohmann::json::parse(page.snapshot(right, now, 7));
}

}  // namespace torchup
