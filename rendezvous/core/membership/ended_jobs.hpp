#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/membership/job_snapshot.hpp"

namespace torchup {

/// Jobs of one run id that are over and may still have agents to be told so; beyond that the oldest is forgotten.
inline constexpr std::size_t ended_jobs_max = 8;

/// Agents that were members of the job and lost their place that are remembered when it ends.
inline constexpr std::size_t lost_agents_max = 1024;

/// An agent's node ids are "NAME_0", "NAME_1" …, a further one after each time it lost its place; see Join::node.
[[nodiscard]] std::string agent_name(const NodeId& node);
[[nodiscard]] int agent_life(const NodeId& node);

/// Names of agents of the job that is going on that have lost their place in it; beyond lost_agents_max the oldest is
/// forgotten.
class LostAgents {
 public:
  void add(const NodeId& node);
  [[nodiscard]] bool contains(const NodeId& node) const;
  [[nodiscard]] std::size_t held_bytes() const { return held_bytes_; }
  [[nodiscard]] std::vector<std::string> names() const { return {names_.begin(), names_.end()}; }

 private:
  std::deque<std::string> names_;
  std::size_t held_bytes_ = 0;
};

/// The jobs of one run id that ended before the one that is going on. Only their own agents hear their verdicts: a run
/// id may be used again, and the one that everybody has by default is.
///
/// Round numbers go on from one job to the next, so that a place tells which job it was in.
class EndedJobs {
 public:
  struct EndedJob {
    std::uint64_t number = 0;  ///< tells it from the others
    Verdict verdict = {};
    Round last_round{0};
    TimePoint kept_until{};
    std::unordered_set<std::string> agents = {};  ///< names of its members, and of those that had lost their place
    std::size_t agents_bytes = 0;                 ///< of them
  };

  /// Returns its number.
  std::uint64_t add(Verdict verdict, Round last_round, std::vector<std::string> agents, TimePoint kept_until);

  /// The job whose agent has come back by another connection: it is `node`, or it was in round `round`.
  [[nodiscard]] const EndedJob* find(const NodeId& node, std::optional<Round> round, TimePoint now);
  [[nodiscard]] EndedJob* find(std::uint64_t number);
  /// An agent of the job that is going on has this node id now.
  void reuse(const NodeId& node);
  [[nodiscard]] bool empty() const { return jobs_.empty(); }
  [[nodiscard]] std::size_t held_bytes() const;
  /// Until when a verdict may still be asked for; long ago when there is none.
  [[nodiscard]] TimePoint kept_until() const;

  [[nodiscard]] std::vector<JobSnapshot::Ended> save(TimePoint now) const;
  void restore(const std::vector<JobSnapshot::Ended>& saved, TimePoint now);

 private:
  std::vector<EndedJob> jobs_;  ///< oldest first
  std::uint64_t next_number_ = 0;
};

}  // namespace torchup
