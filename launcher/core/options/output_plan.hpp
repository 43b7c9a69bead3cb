#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/options/output_options.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// Where one stream of one worker goes.
struct StreamRoute {
  bool to_file = false;
  bool to_console = true;
  bool teed = false;  ///< goes to both by `--tee`: console lines carry the prefix and meet the duplicate filters

  friend bool operator==(const StreamRoute&, const StreamRoute&) = default;
};

struct WorkerRoutes {
  StreamRoute out;
  StreamRoute err;
  friend bool operator==(const WorkerRoutes&, const WorkerRoutes&) = default;
};

/// What becomes of the workers' output on this node. A value, the same for all attempts.
struct OutputPlan {
  std::vector<WorkerRoutes> workers;  ///< index: local rank
  std::string role = "default";
  std::string host;  ///< as gethostname gives it; for prefixes
  std::string run_id = "none";
  std::string log_dir;  ///< as in OutputOptions
  std::string line_prefix_template;
  std::vector<std::string> duplicate_stdout_filters;
  std::vector<std::string> duplicate_stderr_filters;
  std::uint64_t log_max_bytes = 0;
  bool capture = true;

  /// True without `--log-dir=/dev/null`: there are directories and error files.
  [[nodiscard]] bool has_files() const { return log_dir != "/dev/null"; }
};

/// Reads the options for `local_world_size` workers.
///
/// With the null device as log directory redirects, tee and rank filter have no effect (contract §4.1).
/// A local rank in a map may have several digits; ranks beyond the worker count are ignored; the last value counts.
///
/// Errors: errc::bad_value in torchrun's words where it has some: a malformed map or filter, duplicate filters
/// together with the null device.
/// Source: torchrun, torch/distributed/elastic/multiprocessing/api.py, Std.from_str and DefaultLogsSpecs.reify.
[[nodiscard]] Result<OutputPlan> make_output_plan(const OutputOptions& options, int local_world_size, std::string role,
                                                  std::string host, std::string run_id);

/// What stands before every line of a teed stream: the template of the plan, or `[<role><local rank>]:`.
///
/// The template is Python's string.Template with safe substitution: `$name` or `${name}` for role_name, rank,
/// local_rank and hostname; other names stay as they are, `$$` is `$`.
[[nodiscard]] std::string line_prefix(const OutputPlan& plan, Rank rank, LocalRank local_rank);

/// The same where people watch: `[<host>:<rank>] ` in a colour of its own per rank; a template is taken as it is.
[[nodiscard]] std::string terminal_line_prefix(const OutputPlan& plan, Rank rank, LocalRank local_rank, bool colour);

/// Directory of an attempt below the run directory: `attempt_<restarts>`, after `membership_changes` > 0 since that
/// restart `attempt_<restarts>.r<round>`: no attempt writes where another has written.
[[nodiscard]] std::string attempt_name(int restart_count, int membership_changes, Round round);

}  // namespace torchup
