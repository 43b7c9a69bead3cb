#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/core/record/launch_event.hpp"
#include "rendezvous/base/result.hpp"

/// Of the events those that say where the time of ranks goes, and of them what says it.
namespace torchup {

/// Of an event file; a longer one is none of ours.
inline constexpr std::size_t event_line_bytes_max = std::size_t{8} << 20;

namespace time_event {

struct JobStarted {
  std::string run_id;
  int local_world_size = 0;  ///< 1 to local_workers_max
  friend bool operator==(const JobStarted&, const JobStarted&) = default;
};
struct Waiting {
  friend bool operator==(const Waiting&, const Waiting&) = default;
};
struct RoundCompleted {
  std::int64_t round = 0;
  int first_rank = 0;
  int restart_count = 0;
  friend bool operator==(const RoundCompleted&, const RoundCompleted&) = default;
};
/// Also of one that lives on.
struct WorkerStarted {
  int local_rank = 0;
  friend bool operator==(const WorkerStarted&, const WorkerStarted&) = default;
};
/// Of a rank in an attempt. Numbers and times are what the worker says.
struct Steps {
  int rank = 0;
  std::int64_t first = 0, last = 0;        ///< by the program's own numbers
  std::int64_t first_us = 0, last_us = 0;  ///< when they ended
  std::int64_t waited_us = 0;              ///< for slower ranks, behind the first
  friend bool operator==(const Steps&, const Steps&) = default;
};
struct WorkerExited {
  int local_rank = 0;
  bool failed = false;
  std::optional<Steps> steps = {};
  friend bool operator==(const WorkerExited&, const WorkerExited&) = default;
};
struct Progress {
  std::vector<Steps> ranks = {};
  friend bool operator==(const Progress&, const Progress&) = default;
};
struct HangFound {
  bool of_worker = false;  ///< this one is what the others wait for, and the node's word of when it was found
  friend bool operator==(const HangFound&, const HangFound&) = default;
};
struct Stopping {
  friend bool operator==(const Stopping&, const Stopping&) = default;
};
struct AttemptEnded {
  friend bool operator==(const AttemptEnded&, const AttemptEnded&) = default;
};
/// What the attempt that has ended is followed by.
struct RoundFollows {
  bool after_failure = false;  ///< else with other members
  friend bool operator==(const RoundFollows&, const RoundFollows&) = default;
};
struct JobEnded {
  bool failed = false;
  friend bool operator==(const JobEnded&, const JobEnded&) = default;
};
using Body = std::variant<JobStarted, Waiting, RoundCompleted, WorkerStarted, WorkerExited, Progress, HangFound,
                          Stopping, AttemptEnded, RoundFollows, JobEnded>;

}  // namespace time_event

struct TimeEvent {
  std::string host;
  std::int64_t monotonic_us = 0;
  time_event::Body body;
  friend bool operator==(const TimeEvent&, const TimeEvent&) = default;
};

/// Nothing where it says nothing of that.
[[nodiscard]] std::optional<TimeEvent> time_event_of(const LaunchEvent& event, const std::string& host = "");

/// The same of a line of an event file, whoever has written it. Errors: errc::bad_value where it is no event, lacks
/// what it needs, or is of a later schema, with both numbers; errc::limit_exceeded where it is too long or too deep.
[[nodiscard]] Result<std::optional<TimeEvent>> read_time_event(std::string_view line);

}  // namespace torchup
