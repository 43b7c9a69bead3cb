#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

/// What --rehearse is given: faults, when they come, and what is expected of the job.
///
///     script    = statement { (";" | newline) statement }             # a comment to the line's end
///     statement = "at" (TIME | "step" N) action | "every" TIME action ["times=" N] | "expect" expectation { … }
///               | "seed=" N
///     action    = "kill" rank ["signal=" NAME] | "stop" rank "for=" TIME | "slow" rank "by=" N"%" "for=" TIME
///               | "kill" node ["back=" TIME] | "leave" node ["back=" TIME] | "stop" node "for=" TIME
///               | "cut" node "for=" TIME
///     rank = "rank=" (N | "random"), node = "node=" (N | "random")
///     expectation = "exit=" N | "restarts" ("=" | "<=") N | "recovery<=" TIME | "ranks=" N
///
/// A TIME is a number with a unit: 1.5s, 500ms, 2m. Empty statements are none; what stands behind an action's target
/// may stand in any order.
namespace torchup {

inline constexpr std::size_t script_bytes_max = std::size_t{64} << 10;
inline constexpr std::size_t script_statements_max = 256;
inline constexpr Duration script_time_max = std::chrono::hours{24 * 30};
/// Between two faults of one `every`: a shorter time would leave nothing to recover.
inline constexpr Duration script_every_min = std::chrono::milliseconds{100};
inline constexpr int script_times_max = 1000;
inline constexpr int script_slow_percent_max = 1000;
inline constexpr std::int64_t script_step_max = std::int64_t{1} << 53;

enum class FaultKind : std::uint8_t { kill_rank, stop_rank, slow_rank, kill_node, leave_node, stop_node, cut_node };
[[nodiscard]] bool is_of_rank(FaultKind kind);

struct ScriptAction {
  FaultKind kind = FaultKind::kill_rank;
  std::optional<int> target = {};     ///< a rank, or a group rank of the first round; nothing: random
  int signal = 9;                     ///< of kill_rank
  int by_percent = 0;                 ///< of slow_rank: steps take so much longer
  Duration lasts{0};                  ///< of stop, slow, cut; > 0
  std::optional<Duration> back = {};  ///< of kill_node and leave_node: after that the node is started again
  friend bool operator==(const ScriptAction&, const ScriptAction&) = default;
};
/// As a script has it: "kill rank=1 signal=SIGTERM", "slow rank=random by=30% for=5s".
[[nodiscard]] std::string to_text(const ScriptAction& action);

struct ScriptStatement {
  enum class When : std::uint8_t { time, step, every };
  When when = When::time;
  Duration time{0};               ///< since the job's first Placed, or from one to the next
  std::int64_t step = 0;          ///< that has ended
  std::optional<int> times = {};  ///< of every; nothing: until the job ends
  ScriptAction action = {};
  friend bool operator==(const ScriptStatement&, const ScriptStatement&) = default;
};
[[nodiscard]] std::string to_text(const ScriptStatement& statement);

struct ScriptExpectations {
  std::optional<int> exit_code = {};
  std::optional<int> restarts = {};
  bool restarts_at_most = false;  ///< fewer will do
  std::optional<Duration> recovery_max = {};
  std::optional<int> ranks = {};
  friend bool operator==(const ScriptExpectations&, const ScriptExpectations&) = default;
};

struct RehearsalScript {
  std::vector<ScriptStatement> statements = {};
  ScriptExpectations expect = {};
  std::uint64_t seed = 0;
  friend bool operator==(const RehearsalScript&, const RehearsalScript&) = default;
};
/// A script that is read as this one.
[[nodiscard]] std::string to_text(const RehearsalScript& script);

/// "1.5s", "500ms".
[[nodiscard]] std::string script_time_text(Duration time);

/// Errors: errc::bad_value as "2:9: 'for=3' is no time: expected a time such as 1.5s, 500ms or 2m", the line and the
/// byte in it counted from 1; errc::limit_exceeded, likewise, beyond script_bytes_max and script_statements_max.
[[nodiscard]] Result<RehearsalScript> parse_rehearsal(std::string_view text);

}  // namespace torchup
