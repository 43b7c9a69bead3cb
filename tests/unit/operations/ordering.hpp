#pragma once

#include <algorithm>

#include "tests/unit/rendezvous/rendezvous_job.hpp"

/// A job of a, b, … to which people give orders.
namespace torchup::rendezvous_job {

inline constexpr const char* by = "user ada (uid 1000)";

inline JobTerms elastic(int least, int most) {
  return {.min_nodes = least, .max_nodes = most, .max_restarts = 3, .join_timeout = 60s, .last_call = 2s, .lease = 10s};
}

/// A job to which orders are given, and what agents and the log hear of them.
struct Ordering {
  explicit Ordering(Job the_job) : job{std::move(the_job)} {}

  bool order(const Order& order) {
    answer = job.rendezvous.answer(order, job.now);
    const JobSnapshot before = job.rendezvous.snapshot(job.now);
    actions = job.rendezvous.step(Ordered{order, by}, job.now);
    if (!answer.accepted) {  // and nothing has changed
      REQUIRE(actions.empty());
      REQUIRE(job.rendezvous.snapshot(job.now) == before);
    }
    return answer.accepted;
  }
  [[nodiscard]] std::map<std::string, StopWorkers> stops() const {
    std::map<std::string, StopWorkers> found;
    for (const RendezvousAction& action : actions) {
      const auto* tell = std::get_if<Tell>(&action);
      const auto* stop = tell ? std::get_if<StopWorkers>(&tell->message) : nullptr;
      if (stop) found.emplace(job.name_of.at(tell->peer), *stop);
    }
    return found;
  }
  [[nodiscard]] int told() const {
    return static_cast<int>(std::ranges::count_if(
        actions, [](const RendezvousAction& action) { return std::holds_alternative<Tell>(action); }));
  }
  /// All that were told to stop have stopped, and the next round runs, if one can.
  void settle() {
    for (const auto& [name, stop] : stops()) job.join(name);
    begin();
  }
  void begin() {
    const auto store_host = [&] {
      const auto view = job.rendezvous.view(job.now);
      return std::ranges::find(view.nodes, GroupRank{0}, &JobView::Node::group_rank)->host;
    };
    if (job.rendezvous.phase() != Rendezvous::Phase::hosting) return;
    job.say(store_host(), StoreReady{job.rendezvous.round(), Port{4000}});
  }
  /// The states of all nodes, "a ready, b seated".
  [[nodiscard]] std::string states() const {
    std::string text;
    auto nodes = job.rendezvous.view(job.now).nodes;
    std::ranges::sort(nodes, {}, &JobView::Node::host);
    for (const auto& node : nodes) {
      text += (text.empty() ? "" : ", ") + node.host + " " + node.state;
    }
    return text;
  }
  /// The first rank of each node, "a 0, b -".
  [[nodiscard]] std::string first_ranks() const {
    std::string text;
    auto nodes = job.rendezvous.view(job.now).nodes;
    std::ranges::sort(nodes, {}, &JobView::Node::host);
    for (const auto& node : nodes) {
      text += (text.empty() ? "" : ", ") + node.host + " ";
      text += node.first_rank ? std::to_string(node.first_rank->value()) : "-";
    }
    return text;
  }
  [[nodiscard]] JobView view() const { return job.rendezvous.view(job.now); }

  Job job;
  OrderAnswer answer;
  std::vector<RendezvousAction> actions;
};

inline Ordering ordering(int nodes, int least, int most) { return Ordering{running_job(nodes, elastic(least, most))}; }

}  // namespace torchup::rendezvous_job
