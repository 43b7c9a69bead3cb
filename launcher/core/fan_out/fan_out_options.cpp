#include "launcher/core/fan_out/fan_out_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>

#include "launcher/core/fan_out/exported_environment.hpp"
#include "launcher/core/fan_out/remote_command.hpp"
#include "launcher/core/scheduler/detection.hpp"
#include "launcher/core/text/python_numbers.hpp"
#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

constexpr std::array<std::string_view, 3> lists{"hosts", "hostfile", "host-discovery"};
/// What means one node, another way of meeting, or descriptors that other hosts do not have.
constexpr std::array<std::string_view, 7> impossible{"standalone", "node-rank",  "master-addr",   "master-port",
                                                     "no-capture", "local-addr", "rehearse-nodes"};
/// The front's own.
constexpr std::array<std::string_view, 27> kept_here{"hosts",           "hostfile",       "ssh",
                                                     "export",          "chdir",          "remote-torchup",
                                                     "no-label",        "host-discovery", "discovery-interval",
                                                     "host-cooldown",   "events",         "result-file",
                                                     "config",          "token-file",     "read-token-file",
                                                     "status-port",     "status-bind",    "status-host",
                                                     "rdzv-id",         "nnodes",         "dry-run",
                                                     "print-env",       "format",         "print-batch-script",
                                                     "termination-log", "use-env",        "expect-hosts"};

Error bad_option(std::string text) { return fail(errc::bad_value, std::move(text)); }

bool is_in(std::string_view name, const auto& list) { return std::ranges::find(list, name) != list.end(); }

/// --hosts=auto: those of the batch job that we run in.
Result<std::vector<Host>> hosts_of_scheduler(const OptionValues& options, const FanOutFacts& facts, FanOutPlan& plan) {
  const auto found = find_allocation(options.text("scheduler", "auto"), facts.scheduler);
  if (!found) return found.error();
  if (!*found || !(*found)->hosts || (*found)->hosts->value.empty()) {
    return bad_option("--hosts=auto: no scheduler around us says which hosts there are; --hosts=NAME,...");
  }
  plan.hosts_from = (*found)->hosts->from;
  std::vector<Host> hosts;
  for (const std::string& name : (*found)->hosts->value) hosts.push_back({.name = name});
  if (hosts.size() <= hosts_max) return hosts;
  return bad_option(fmt::format("--hosts=auto: {} tells of {} hosts, where {} are the most", plan.hosts_from,
                                hosts.size(), hosts_max));
}

Result<std::vector<Host>> read_hosts(const OptionValues& options, const FanOutFacts& facts, FanOutPlan& plan) {
  if (options.has("hosts")) {
    plan.hosts_from = options.source("hosts");
    const std::string list = options.text("hosts");
    return list == "auto" ? hosts_of_scheduler(options, facts, plan) : parse_hosts(list);
  }
  plan.hosts_from = options.source("hostfile");
  const std::string path = options.text("hostfile");
  const auto content = facts.scheduler.file(path, hostfile_bytes_max);
  if (!content) return bad_option("--hostfile: " + content.error().message());
  return parse_hostfile(*content, path);
}

/// Whoever has started us on several nodes is a fan-out already.
Result<> refuse_in_step(const OptionValues& options, const FanOutFacts& facts) {
  if (options.text("scheduler", "auto") == "none") return {};
  const auto found = find_allocation(options.text("scheduler", "auto"), facts.scheduler);
  if (!found) return found.error();
  if (!*found || !(*found)->each) return {};
  const bool several = (*found)->tasks.value > 1 || ((*found)->nodes && (*found)->nodes->value > 1);
  if (!several) return {};
  return bad_option(
      fmt::format("{} has started this on several nodes or as several tasks already, and each would start "
                  "agents on all hosts; without --hosts they meet, --scheduler=none takes no notice",
                  (*found)->scheduler));
}

Result<> refuse_impossible(const OptionValues& options) {
  std::vector<std::string> given;
  for (const std::string_view list : lists) {
    if (options.given(list)) given.push_back("--" + std::string{list});
  }
  if (given.size() > 1) {
    return bad_option(
        fmt::format("{} both say on which hosts to start: one of them is enough", fmt::join(given, " and ")));
  }
  for (const std::string_view name : impossible) {
    if (options.given(name)) {
      return bad_option(
          fmt::format("--{} does not go with {}, which starts the agents of all nodes", name, given.front()));
    }
  }
  const std::string backend = options.text("rdzv-backend", "c10d");
  if (options.given("rdzv-backend") && backend != "c10d") {
    return bad_option(
        fmt::format("--rdzv-backend={} does not go with {}: nodes meet over its links, or at a c10d "
                    "--rdzv-endpoint",
                    backend, given.front()));
  }
  return {};
}

Result<Duration> read_seconds(std::string_view name, std::string_view text, double least) {
  const auto number = python_float(text);
  const double most = std::chrono::duration<double>{duration_max}.count();
  if (number && *number >= least && *number <= most) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>{*number});
  }
  return bad_option(fmt::format("--{}: '{}' is no number of seconds from {} on", name, text, least));
}

Result<> read_discovery(const OptionValues& options, FanOutPlan& plan) {
  if (!options.has("host-discovery")) return {};
  const auto interval = read_seconds("discovery-interval", options.text("discovery-interval", "1"), 0.1);
  if (!interval) return interval.error();
  plan.hosts_from = options.source("host-discovery");
  plan.discovery = HostDiscovery{options.text("host-discovery"), *interval};
  if (plan.discovery->source.empty()) return bad_option("--host-discovery: there is no command, and no file");
  plan.settings.discovers = true;
  const std::string text = options.text("host-cooldown", "10..300");
  const auto dots = text.find("..");
  const auto least = read_seconds("host-cooldown", text.substr(0, dots), 0.1);
  const auto most = dots == std::string::npos ? least : read_seconds("host-cooldown", text.substr(dots + 2), 0.1);
  if (!least || !most || *most < *least) {
    return bad_option(fmt::format("--host-cooldown={} is not MIN..MAX in seconds, for instance 10..300", text));
  }
  plan.settings.cooldown_min = *least;
  plan.settings.cooldown_max = *most;
  return {};
}

Result<> read_way(const OptionValues& options, const FanOutFacts& facts, FanOutPlan& plan) {
  auto command = split_words(options.text("ssh", ssh_default));
  if (!command) return bad_option("--ssh: " + command.error().message());
  plan.command = *std::move(command);
  plan.own_program = facts.program;
  plan.program = options.text("remote-torchup", facts.program);
  if (!is_safe_word(plan.program)) {
    return bad_option(fmt::format("--remote-torchup: a shell there would not read '{}' as one word", plan.program));
  }
  auto environment = exported_environment(facts.environment, options.text("export", "ALL"));
  if (!environment) return environment.error();
  plan.agents.environment = *std::move(environment);
  const std::string directory = options.text("chdir", facts.directory);
  // There a relative one would begin at the home of whoever logs in.
  const bool absolute = directory.starts_with('/');
  if (!absolute && facts.directory.empty()) {
    return bad_option("the working directory is not known; --chdir=/DIR names one");
  }
  plan.agents.directory = absolute ? directory : facts.directory + "/" + directory;
  plan.label = !options.flag("no-label");
  return {};
}

/// Names that a list can hold, in the user's order; else empty.
std::string expected_hosts(const FanOutPlan& plan) {
  std::string list;
  for (const Host& host : plan.settings.hosts) {
    const std::string_view name = name_of_host(host.name);
    if (name.find_first_of(":,[]") != std::string_view::npos) return "";
    list += fmt::format("{}{}", list.empty() ? "" : ",", name);
  }
  return list.size() <= text_bytes_max && !plan.discovery ? list : "";
}

}  // namespace

bool asks_for_hosts(const OptionValues& options) {
  return std::ranges::any_of(lists, [&](std::string_view list) { return options.given(list); });
}

Result<FanOutPlan> read_fan_out(const OptionValues& options, const FanOutFacts& facts) {
  FanOutPlan plan;
  if (auto refused = refuse_impossible(options); !refused) return refused.error();
  if (auto refused = refuse_in_step(options, facts); !refused) return refused.error();
  if (auto read = read_discovery(options, plan); !read) return read.error();
  if (!plan.discovery) {
    auto hosts = read_hosts(options, facts, plan);
    if (!hosts) return hosts.error();
    plan.settings.hosts = *std::move(hosts);
  }
  if (auto read = read_way(options, facts, plan); !read) return read.error();
  plan.settings.version = plan.agents.version = facts.version;
  plan.settings.own_coordinator = !options.has("rdzv-endpoint");
  plan.agents.own_coordinator = plan.settings.own_coordinator;
  plan.agents.wants_events = options.has("events");
  plan.agents.wants_result = options.has("result-file");
  return plan;
}

std::vector<std::string> agent_arguments(const OptionValues& options, const FanOutPlan& plan, const std::string& name,
                                         const std::string& nodes) {
  std::vector<std::string> words{name, "--nnodes=" + nodes};
  const std::string expected = options.text("expect-hosts", expected_hosts(plan));
  if (!expected.empty()) words.push_back("--expect-hosts=" + expected);
  for (const OptionSpec& option : option_table()) {
    if (!options.has(option.name) || is_in(option.name, kept_here)) continue;
    std::string word = "--" + std::string{option.name};
    if (option.kind != ValueKind::flag) word += "=" + options.text(option.name);
    words.push_back(std::move(word));
  }
  return words;
}

std::vector<std::string> words_of(const LinkPlan& plan) {
  std::vector<std::string> words = plan.arguments;
  words.emplace_back("--");
  words.insert(words.end(), plan.program.begin(), plan.program.end());
  return words;
}

LinkPlan link_plan(const FanOutPlan& plan, const Host& host, int node) {
  LinkPlan agent = plan.agents;
  agent.name = name_of_host(host.name);
  agent.node = node;
  agent.address = host.address;
  agent.workers = host.slots.value_or(0);
  return agent;
}

}  // namespace torchup
