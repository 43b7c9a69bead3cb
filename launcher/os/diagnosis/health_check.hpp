#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/diagnosis/preflight.hpp"
#include "rendezvous/base/types.hpp"

/// --health-check: a command of the user's, which may do whatever it likes.
namespace torchup {

/// What is asked, and where. The values are those of a real system but in tests.
struct HealthQuery {
  std::string command = {};  ///< for sh -c; health_check_bytes_max at most
  std::string run_id = {};
  std::string last_failure = {};           ///< empty: none yet; last_failure_bytes_max at most
  std::string program = "/proc/self/exe";  ///< a torchup
  Duration limit = health_check_limit;
  int cancelled = -1;  ///< as in Helper
};

/// Runs the command, and says what it makes of this node: nothing when it is fit. Nothing either when it was cancelled.
///
/// The command has stdin /dev/null, a process group of its own and the variables TORCHUP_RUN_ID and
/// TORCHUP_LAST_FAILURE. It belongs to a helper (torchup itself, started again) to which everything falls that loses
/// its parent: so whatever the command has started, in whatever session, is gone when this returns.
[[nodiscard]] std::optional<Finding> check_health(const HealthQuery& query);

/// What torchup is started with, as its first argument, to be that helper; command, limit in ms, run id and last
/// failure follow. No user types it.
inline constexpr std::string_view health_word = "torchup: check health";
inline constexpr int health_words = 6;  ///< of its command line
/// The helper's whole life: its answer goes to stdout. Returns its exit code.
[[nodiscard]] int answer_about_health(char** words);

}  // namespace torchup
