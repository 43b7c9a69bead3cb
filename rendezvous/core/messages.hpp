#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "rendezvous/base/types.hpp"

/// What agents and the coordinator say to each other, as values. The bytes are in agent_codec, the rules in rendezvous.
///
/// The coordinator decides, agents report and obey. A round runs so:
///   agents: Join …            coordinator, when all are there: HostStore to group rank 0
///   group rank 0: StoreReady  coordinator: Placed to all; they start their workers
///   WorkersSucceeded from all, or WorkersFailed from one
///   coordinator: End to all, or StopWorkers to all, upon which each stops its workers and sends Join again.
namespace torchup {

/// What must be the same on all nodes of a job. The first agent's terms stand; another's that differ are refused.
struct JobTerms {
  int min_nodes = 1;  ///< >= 1
  int max_nodes = 1;  ///< >= min_nodes
  int max_restarts = 0;
  friend bool operator==(const JobTerms&, const JobTerms&) = default;
};

/// How one worker ended badly.
struct WorkerFailure {
  Rank rank{0};
  LocalRank local_rank{0};
  int exit_code = 0;  ///< the worker's own, or the negative signal number, as torchrun counts
  std::int64_t pid = 0;
  std::string host;           ///< of the node it ran on
  std::int64_t time_us = 0;   ///< UTC, microseconds since 1970, by that node's clock; for people only
  std::string message;        ///< what is known of the cause; may be empty
  std::string error_file;     ///< the worker's own error file on its node; empty when it left none
  friend bool operator==(const WorkerFailure&, const WorkerFailure&) = default;
};

/// One agent's place in a round.
struct Placement {
  Round round{0};
  GroupRank group_rank{0};
  int group_world_size = 1;
  Rank first_rank{0};  ///< rank of this node's local rank 0; its workers are consecutive
  int world_size = 1;
  Rank first_role_rank{0};
  int role_world_size = 1;
  std::string master_addr;
  Port master_port{0};
  int restart_count = 0;
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// How the job ended, the same for every node.
struct Verdict {
  int exit_code = 0;   ///< design.md §4
  std::string reason;  ///< one line for people
  std::vector<WorkerFailure> failures;  ///< in the order they were noticed; the first is the root cause. Empty on success
  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// Agent to coordinator.

struct Join {
  NodeId node{""};
  std::string host;                    ///< for people
  std::vector<std::string> addresses;  ///< where other nodes may reach this one, best first; may be empty
  int local_world_size = 1;            ///< >= 1
  std::string role = "default";
  JobTerms terms;
  friend bool operator==(const Join&, const Join&) = default;
};
struct StoreReady {
  Round round{0};
  Port port{0};
  friend bool operator==(const StoreReady&, const StoreReady&) = default;
};
struct WorkersFailed {
  Round round{0};
  std::vector<WorkerFailure> failures;  ///< at least one
  friend bool operator==(const WorkersFailed&, const WorkersFailed&) = default;
};
struct WorkersSucceeded {
  Round round{0};
  friend bool operator==(const WorkersSucceeded&, const WorkersSucceeded&) = default;
};
/// This node ends the job for everybody (a user's Ctrl-C), or leaves it (TERM).
struct Leave {
  bool ends_job = true;
  int exit_code = 0;
  std::string reason;
  friend bool operator==(const Leave&, const Leave&) = default;
};
struct KeepAlive {
  friend bool operator==(const KeepAlive&, const KeepAlive&) = default;
};
using AgentMessage = std::variant<Join, StoreReady, WorkersFailed, WorkersSucceeded, Leave, KeepAlive>;

// Coordinator to agent.

struct HostStore {
  Round round{0};
  friend bool operator==(const HostStore&, const HostStore&) = default;
};
struct Placed {
  Placement placement;
  friend bool operator==(const Placed&, const Placed&) = default;
};
/// Stop this round's workers, then send Join again.
struct StopWorkers {
  Round round{0};
  std::string reason;
  friend bool operator==(const StopWorkers&, const StopWorkers&) = default;
};
/// The job is over: stop what still runs, report, exit.
struct End {
  Verdict verdict;
  friend bool operator==(const End&, const End&) = default;
};
/// One line for people about what the job waits for; sent when it changes.
struct Waiting {
  std::string roster;
  friend bool operator==(const Waiting&, const Waiting&) = default;
};
using CoordinatorMessage = std::variant<HostStore, Placed, StopWorkers, End, Waiting>;

}  // namespace torchup
