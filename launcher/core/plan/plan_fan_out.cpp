#include "launcher/core/plan/plan_fan_out.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "launcher/core/fan_out/remote_command.hpp"
#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/scheduler/derived_options.hpp"
#include "launcher/core/scheduler/stop_time.hpp"

namespace torchup {
namespace {

/// Of each host's own machine.
constexpr std::array<std::string_view, 8> of_hosts{"gpus", "numa-binding", "preload",     "virtual-local-rank",
                                                   "omp",  "requeue",      "stop-before", "health-check"};
/// What nodes are asked for where nobody says how many.
constexpr std::string_view discovered_nodes = "1:1024";

/// The options as they hold for all hosts, for the checks that need none of them.
OptionValues for_all_hosts(OptionValues options) {
  options.set("scheduler", "none", "default");
  if (!options.has("rdzv-endpoint")) options.set("rdzv-endpoint", "localhost", "default");
  options.set("rdzv-backend", "c10d", "default");
  for (const std::string_view name : of_hosts) options.unset(name);
  const std::string workers = options.text("nproc-per-node", "1");
  const bool counted = workers.find_first_not_of("0123456789") == std::string::npos;
  if (!counted) options.set("nproc-per-node", "1", options.source("nproc-per-node"));
  return options;
}

/// Where every program is, and nothing else.
Machine any_machine(const Machine& own) {
  Machine machine = own;
  machine.program = [](const std::string& name, Where) -> std::optional<ProgramFile> {
    return ProgramFile{.path = name, .kind = ProgramFile::Kind::elf, .executable = true};
  };
  machine.pythons = [] {
    Pythons pythons;
    pythons.on_path = ProgramFile{.path = "python3", .kind = ProgramFile::Kind::elf, .executable = true};
    return pythons;
  };
  machine.gpus = [] { return Gpus{}; };
  return machine;
}

/// Workers may have the grace to end by themselves, once more after SIGTERM, and before that the time to save at the
/// end of the job's; files and last lines take theirs.
void limit_ends(const OptionValues& options, Duration grace, FanOutSettings& settings) {
  const auto stop = parse_stop_before(options.text("stop-before"));
  const Duration legitimate = 2 * grace + (stop ? stop->lead : Duration{0});
  settings.end_told = legitimate + std::chrono::seconds{10};
  settings.end_limit = legitimate + std::chrono::seconds{60};
}

}  // namespace

Result<FrontPlan> plan_fan_out(const OptionValues& options, const std::vector<std::string>& words, bool legacy,
                               const Machine& machine, const FanOutFacts& facts) {
  auto hosts = read_fan_out(options, facts);
  if (!hosts) return hosts.error();
  FrontPlan front{.hosts = *std::move(hosts), .job = {}};
  FanOutSettings& settings = front.hosts.settings;
  OptionValues own = options;
  if (options.text("scheduler", "auto") != "none") derive_grace(machine.variable, own);
  own.derive("nnodes", settings.discovers ? std::string{discovered_nodes} : fmt::format("{}", settings.hosts.size()),
             front.hosts.hosts_from);
  own.derive("rdzv-id", machine.random_run_id(), "default");
  const std::string nodes = own.text("nnodes");
  auto job = make_plan(for_all_hosts(own), words, legacy, any_machine(machine));
  if (!job) return job.error();
  front.job = *std::move(job);
  front.job.front = true;
  front.job.program.command = words;
  if (settings.own_coordinator) front.job.rendezvous.endpoint.reset();
  const int least = front.job.terms.min_nodes;
  if (!settings.discovers && static_cast<std::size_t>(least) > settings.hosts.size()) {
    return bad(fmt::format("--nnodes={}: {} names {} hosts", nodes, front.hosts.hosts_from, settings.hosts.size()));
  }
  settings.min_nodes = least;
  settings.join_timeout = front.job.terms.join_timeout;
  settings.end_signals = front.job.end_signals;
  settings.drain_signals = front.job.drain_signals;
  limit_ends(own, front.job.stop_grace, settings);
  for (const Host& host : settings.hosts) front.job.scheduler.hosts.emplace_back(name_of_host(host.name));
  front.job.scheduler.hosts_from = front.hosts.hosts_from;

  LinkPlan& agents = front.hosts.agents;
  agents.arguments = agent_arguments(own, front.hosts, legacy ? "torchup-launch" : "torchup", nodes);
  agents.program = words;
  agents.run_id = front.job.rendezvous.run_id;
  if (auto fits = check_link_plan(agents); !fits) return fits.error();
  return front;
}

}  // namespace torchup
