#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// The steps that a worker has ended in an attempt, by the page that it shares with us. Where that does not tell of the
/// first one and of all waiting, by what we have seen of it, look by look.
struct WorkerSteps {
  std::uint64_t beats = 0;      ///< how many, at least 1
  std::int64_t first_step = 0;  ///< the program's own number of the first one
  std::int64_t last_step = 0;
  std::int64_t first_us = 0;  ///< when it ended, by this node's monotonic clock
  std::int64_t last_us = 0;
  std::int64_t waited_us = 0;  ///< for other ranks, behind the first
  friend bool operator==(const WorkerSteps&, const WorkerSteps&) = default;
};

struct RankSteps {
  Rank rank{0};
  WorkerSteps steps;
  friend bool operator==(const RankSteps&, const RankSteps&) = default;
};

namespace event {

/// How far this node's workers are, again and again, and at the end of an attempt.
struct Progress {
  std::int64_t step_min = 0;  ///< of their last steps
  std::int64_t step_max = 0;
  double steps_per_second = 0;     ///< of the rank that is farthest, since the last of these events
  std::vector<RankSteps> ranks{};  ///< that have ended a step in this attempt
  friend bool operator==(const Progress&, const Progress&) = default;
};
/// The round of this attempt ends because a node has come or gone. No restart.
struct MembershipChanged {
  std::string reason;
  friend bool operator==(const MembershipChanged&, const MembershipChanged&) = default;
};
/// Somebody who may has ordered something. Before anything follows from it.
struct OrderReceived {
  std::string verb;  ///< `stop`, `restart`, `drain`, `undrain`, `resize`
  std::string by;    ///< "user NAME (uid N)", "token from ADDRESS"
  friend bool operator==(const OrderReceived&, const OrderReceived&) = default;
};
/// What --on-event names has not done its work.
struct HookFailed {
  std::string command;
  std::string reason;
  friend bool operator==(const HookFailed&, const HookFailed&) = default;
};

}  // namespace event
}  // namespace torchup
