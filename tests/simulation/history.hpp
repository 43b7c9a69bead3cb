#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent.hpp"
#include "coordinator.hpp"
#include "network.hpp"
#include "promises.hpp"
#include "settings.hpp"
#include "world.hpp"

namespace torchup::simulation {

/// One job of two to eight agents and its coordinator, and what befalls them: all of it follows from the seed.
///
/// For `faults_end` things go wrong: agents are killed, stopped and replaced, leave and come late, their clocks skip or
/// stand still, their ways drop or reject in one direction or both, connections break at one end alone, workers fail;
/// the coordinator is killed and started again, with its memory or without, or stopped; people order this and that.
/// Then there is quiet: by `settled` a round must run if there are nodes enough for one, and by `end` every agent must
/// have a verdict.
class History {
 public:
  /// `forgetful`: one coordinator in three has no memory.
  History(std::uint64_t seed, Mutation mutation, bool forgetful, bool verbose);
  void run();

  /// What the histories of a campaign did, so that one that shows nothing is seen.
  struct Deeds {
    std::uint64_t rounds = 0, restarts = 0, node_faults = 0, coordinator_faults = 0, orders = 0;
  };
  [[nodiscard]] Deeds deeds() const;

 private:
  static constexpr TimePoint at(Duration time) { return TimePoint{} + time; }
  void start_agent(const std::string& host, TimePoint when);
  void plan_node_fault();
  void node_fault(int kind, std::size_t index, Duration lasts);
  void plan_coordinator_fault();
  void plan_order();
  void give_order(int kind, std::size_t index);
  void fault_of(std::size_t index, Duration lasts);
  void suspend(std::size_t index, Duration lasts);
  [[nodiscard]] TimePoint knows_by() const;
  void impair(std::size_t index, Network::Way way, Duration lasts);
  void calm();
  void check_settled();
  void check_end();
  [[nodiscard]] double rate();

  World world_;
  Mutation mutation_;
  JobTerms terms_;
  Network network_;
  Promises promises_;
  std::unique_ptr<Coordinator> coordinator_;
  TimePoint coordinator_back_{};  ///< from its last end
  std::vector<Workers> workers_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::map<std::string, int> lives_;
  bool workers_may_fail_ = true, workers_may_finish_ = false;
  Deeds deeds_;
};

}  // namespace torchup::simulation
