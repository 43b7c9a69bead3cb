#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/membership/seating.hpp"
#include "rendezvous/core/round/orders.hpp"
#include "world.hpp"

namespace torchup::simulation {

/// What one node's workers are doing, in truth.
struct Workers {
  std::string host = {};
  int job = 0;                          ///< of those that the run id has had one after the other
  std::optional<Placement> place = {};  ///< they run, in that round
  TimePoint started{};
  TimePoint hindered_until{};  ///< its process or its network had a fault until then
  TimePoint unaware_until{};   ///< its clock stood still: until then, a lease later, it may not know what it missed
  const Process* agent = nullptr;
};

/// What must hold in every history. Knows the truth, and is told what is done.
///
/// 1. Never two rounds at once that both make progress: when workers start, no agent that is awake has workers of
///    another round, and no group rank is taken twice. A coordinator that lost its memory cannot know of an agent that
///    cannot reach it: that one is excused for as long as workers may run without a coordinator, no longer. An agent
///    whose clock stood still while it was away learns from the coordinator alone what it missed: a lease later it
///    knows, where a coordinator is there.
/// 2. One decision per round: its members, ranks and counts are told alike to all, and round numbers never go back,
///    but where a coordinator without memory has heard of them from nobody.
/// 3. One verdict, told once to each; another one after a coordinator has forgotten the first.
/// 4. No restart is counted twice or lost, and none for what people order.
/// 5. A round has as many nodes as the job's range of then allows, and no drained one, until a coordinator has
/// forgotten
///    what was ordered.
class Promises {
 public:
  Promises(World& world, JobTerms terms) : world_{world}, terms_{std::move(terms)}, range_{range_of(terms_)} {}

  // What the coordinator does.
  void placed(const std::string& node, const Placement& place);
  void stopped(const StopWorkers& stop);
  void decided(const Verdict& verdict, bool own_leave);
  /// An order was accepted. `agent_at`: the name of the agent on a host.
  void ordered(const Order& order, const std::function<std::string(const std::string&)>& agent_at);
  /// The run id has a further job: its restarts and its verdict are its own, round numbers go on.
  void job_begins();
  /// Agents that had not heard a verdict by then get one of their own.
  void lost_memory();

  // What nodes do.
  void workers_start(std::vector<Workers>& nodes, std::size_t index, const Placement& place);
  void worker_failed(Round round) { failed_.insert(round); }
  /// Something happened to a node, so that a failure may have been collateral.
  void node_fault() { node_fault_ = world_.now(); }
  void woke(const std::vector<Workers>& nodes) { check_rounds(nodes); }

  [[nodiscard]] const JobRange& range() const { return range_; }
  [[nodiscard]] bool is_drained(const std::string& agent) const { return drained_.contains(agent); }
  /// A round may still run that a range allowed which is forgotten.
  [[nodiscard]] bool has_forgotten_orders() const { return forgotten_; }
  [[nodiscard]] bool was_decided(const Verdict& verdict) const;
  [[nodiscard]] std::uint64_t rounds() const { return rounds_.size(); }
  [[nodiscard]] std::uint64_t restarts() const { return restarts_; }

 private:
  struct RoundTruth {
    Placement place;                        ///< of whoever was told first
    std::map<int, std::string> nodes = {};  ///< by group rank
    TimePoint told{};
  };
  void check_rounds(const std::vector<Workers>& nodes) const;
  [[nodiscard]] bool excused(const Workers& workers) const;
  void check_counts(const Placement& place);
  [[nodiscard]] bool begins_again(const Placement& place) const;
  void forget_orders();

  World& world_;
  JobTerms terms_;
  JobRange range_;                 ///< as ordered last
  std::set<std::string> drained_;  ///< agents
  bool any_order_ = false, forgotten_ = false;
  std::map<Round, RoundTruth> rounds_;
  std::set<Round> failed_, counted_;
  std::optional<TimePoint> memory_lost_, node_fault_;
  std::optional<Verdict> verdict_;
  std::vector<Verdict> former_verdicts_;
  int job_ = 0;
  bool begun_ = true;  ///< no round of this job was placed so far
  std::uint64_t restarts_ = 0;
};

}  // namespace torchup::simulation
