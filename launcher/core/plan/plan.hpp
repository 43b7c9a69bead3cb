#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/options/option_values.hpp"
#include "launcher/core/plan/worker_command.hpp"
#include "launcher/core/plan/worker_count.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/base/worker_env.hpp"

namespace torchup {

/// What the plan asks of the machine. The shell looks it up, each at most once and only when it is needed: asking the
/// GPU driver takes longer than starting workers.
struct Machine {
  VariableLookup variable;
  ProgramLookup program;
  PythonLookup pythons;
  std::function<Result<Cpus>(bool with_topology)> cpus;
  std::function<Gpus()> gpus;
  std::function<std::string()> random_run_id;                          ///< a UUID
  std::string host;                                                    ///< as gethostname gives it
  std::function<Result<std::string>(const std::string& path)> script;  ///< the content of --rehearse=@FILE
  std::optional<RehearsedNode> rehearsed;                              ///< which node of --rehearse-nodes this is
};

/// How our own lines are to be written, known before there is a plan: a refusal is such a line too.
[[nodiscard]] LogWords log_words(const OptionValues& options);

/// Turns options and program words into the plan of this agent: all checks of all options, in torchrun's order.
///
/// Errors: errc::bad_value, one line for people; errc::refused when the machine lacks GPUs that were asked for by name
/// (exit code 65).
/// Source: torchrun, torch/distributed/run.py, config_from_args.
[[nodiscard]] Result<LaunchConfig> make_plan(const OptionValues& options, const std::vector<std::string>& words,
                                             bool legacy, const Machine& machine);

}  // namespace torchup
