#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/shared.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/membership/seating.hpp"

namespace torchup {

/// What a job's rendezvous must remember for its agents to notice nothing when the coordinator is started anew.
///
/// A value: it compares, and job_codec makes bytes of it. Times are told relative to the moment of the snapshot, for
/// the next life has another clock: ages of what was, and how much is left of what is waited for. The time between two
/// lives is no part of either.
///
/// Left out, because agents restate it when they come back: connections, leases, failures not yet decided about.
struct JobSnapshot {
  enum class Phase : std::uint8_t {
    gathering,  ///< members come together for the next round
    hosting,    ///< decided; group rank 0 opens the worker store
    running,
    doubting,   ///< a worker failed; is a lost node the cause?
    restoring,  ///< a coordinator without a snapshot waits until the round it was told of is complete
    ended,
  };
  enum class Stage : std::uint8_t { ready, seated, finished, stopping };

  struct SavedMember {
    Shared<Join> join = {};  ///< as it is kept (core/membership/membership)
    Stage stage = Stage::ready;
    bool aside = false;
    std::string observed = {};
    std::uint64_t seniority = 0;
    Seat seat = {};                   ///< in Stage::seated and Stage::finished, else in `round`
    std::optional<Round> round = {};  ///< the last one that it had a place in
    friend bool operator==(const SavedMember&, const SavedMember&) = default;
  };
  struct Losses {
    std::string host = {};
    std::vector<Duration> ages = {};
    friend bool operator==(const Losses&, const Losses&) = default;
  };

  /// Restarts after worker failures that were counted at one time.
  struct Restarts {
    Duration age{0};
    int restarts = 0;  ///< >= 1
    friend bool operator==(const Restarts&, const Restarts&) = default;
  };
  /// An earlier job of the same run id, whose agents may still come for its verdict.
  struct Ended {
    Verdict verdict = {};
    Round last_round{0};
    std::vector<std::string> agents = {};  ///< names of its agents, sorted
    Duration kept{0};                      ///< for that long
    friend bool operator==(const Ended&, const Ended&) = default;
  };

  /// What people have ordered, as far as it is not done with.
  struct Orders {
    std::optional<JobRange> range = {};     ///< that the job goes on with; nothing: its terms'
    std::vector<std::string> drained = {};  ///< names of agents, sorted
    bool planned_stop = false;              ///< the round before was stopped by plan
    friend bool operator==(const Orders&, const Orders&) = default;
  };

  std::optional<JobTerms> terms = {};
  std::vector<Fact> facts = {};
  std::string coordinator_address = {};
  Phase phase = Phase::gathering;  ///< never doubting: that is running, and the failure is restated
  Round round{0};
  Round next_round{0};  ///< the number of the next round is no smaller
  bool formed_once = false;
  int restart_count = 0;
  std::vector<Restarts> restarts = {};  ///< of them, those that may count against the budget; oldest first
  int membership_changes = 0;
  std::vector<SavedMember> members = {};  ///< those of the round first, by group rank; then by seniority
  std::uint64_t next_seniority = 0;
  std::vector<Losses> losses = {};  ///< by host
  int group_world_size = 0;
  int world_size = 0;
  std::string master_addr = {};
  Port master_port{0};
  std::optional<Duration> gather_left = {};
  std::optional<Duration> last_call_left = {};
  std::optional<Duration> leave_left = {};
  std::optional<Duration> patience_left = {};
  std::optional<Duration> forget_left = {};
  std::optional<Verdict> verdict = {};
  std::vector<Ended> ended = {};  ///< oldest first
  Orders orders = {};
  StoreKey store_key{};  ///< Placement::store_key of the round
  friend bool operator==(const JobSnapshot&, const JobSnapshot&) = default;
};

}  // namespace torchup
