#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/fan_out/fan_out.hpp"
#include "launcher/core/options/option_values.hpp"
#include "launcher/core/scheduler/allocation.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// Whoever is asked again and again which hosts there are.
struct HostDiscovery {
  std::string source;  ///< a plain file, else a command for `sh -c`
  Duration interval{};
  friend bool operator==(const HostDiscovery&, const HostDiscovery&) = default;
};

/// What --hosts and its like ask for. `settings` and `agents` lack what the plan of the job says: see plan_fan_out.
struct FanOutPlan {
  FanOutSettings settings;
  std::string hosts_from;  ///< the option, or the scheduler's variables
  std::optional<HostDiscovery> discovery;
  std::vector<std::string> command;  ///< --ssh, in words
  std::string program;               ///< there
  std::string own_program;           ///< for this host itself
  bool label = true;                 ///< in front of each line
  LinkPlan agents;                   ///< the same for all hosts
};

/// What the machine says for it.
struct FanOutFacts {
  SchedulerFacts scheduler;
  std::vector<std::string> environment;  ///< ours, "NAME=value" each
  std::string directory;                 ///< that we work in; empty: it is not known
  std::string program;                   ///< the path of our own file
  std::string version;                   ///< of it
};

/// Whether agents are to be started on a list of hosts.
[[nodiscard]] bool asks_for_hosts(const OptionValues& options);

/// Errors: errc::bad_value, one line that names the option, or file:line. No host, more than one list, an option that
/// means one node or another meeting; a scheduler that has started us on several nodes already.
[[nodiscard]] Result<FanOutPlan> read_fan_out(const OptionValues& options, const FanOutFacts& facts);

/// The command line of each agent, its name first: what the front was told and is not the front's own. `name`:
/// "torchup", or that of a compatible program. `nodes`: the value of --nnodes.
[[nodiscard]] std::vector<std::string> agent_arguments(const OptionValues& options, const FanOutPlan& plan,
                                                       const std::string& name, const std::string& nodes);

/// The whole command line of the agent that has got this plan.
[[nodiscard]] std::vector<std::string> words_of(const LinkPlan& plan);

/// What one host gets.
[[nodiscard]] LinkPlan link_plan(const FanOutPlan& plan, const Host& host, int node);

}  // namespace torchup
