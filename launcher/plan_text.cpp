#include "launcher/plan_text.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/core/text/signals.hpp"

namespace torchup {
namespace {

std::string exact_seconds(Duration duration) {
  std::ostringstream text;
  text << std::chrono::duration<double>{duration}.count() << " s";
  return text.str();
}

std::string words_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$`*?;&|<>()[]{}!#~") == std::string::npos;
    std::string quoted;
    for (const char c : word) quoted += c == '\'' ? std::string{"'\\''"} : std::string{c};
    text += (text.empty() ? "" : " ") + (plain ? word : "'" + quoted + "'");
  }
  return text;
}

std::string hang_text(const JobTerms& terms) {
  constexpr std::string_view actions[] = {"report", "abort", "restart"};
  const HangTimeout& timeout = terms.hang_timeout;
  if (timeout.mode == HangTimeout::Mode::off) return "not watched";
  std::string limit = "auto";
  if (timeout.mode == HangTimeout::Mode::given) {
    limit = exact_seconds(timeout.silence);
    if (timeout.start) limit += fmt::format(", {} before the first progress", exact_seconds(*timeout.start));
  }
  return fmt::format("{}, then {}", limit, actions[static_cast<std::size_t>(terms.on_hang)]);
}

std::string stop_text(const LaunchConfig& plan) {
  const StopBefore& stop = *plan.stop_before;
  if (stop.untold) return "when another node does: here nobody tells when the time of this job ends";
  if (!plan.deadline) return "never: the time of this job has no end";
  return fmt::format("{} before {}  ({}), over the page or by {}", exact_seconds(stop.lead), *plan.deadline,
                     plan.origins.deadline, signal_text(stop.signal));
}

std::string statements_text(const RehearsalScript& script) {
  std::string text = to_text(script);
  text.pop_back();  // its last line's end
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos;) text.replace(at, 1, "; ");
  return text;
}

std::string rendezvous_text(const LaunchConfig& plan) {
  const RendezvousConfig& meeting = plan.rendezvous;
  if (plan.front && !meeting.endpoint) return "in this process, over the links to the hosts";
  if (meeting.etcd) {
    std::string members = "any node's agent, as they settle it in etcd at ";
    for (const Endpoint& each : meeting.etcd->members) {
      members += (&each == &meeting.etcd->members.front() ? "" : ", ") + to_string(each);
    }
    return members + ", prefix " + meeting.etcd->conf.prefix;
  }
  if (plan.rehearsal.nodes > 0) return "c10d, on a free port of 127.0.0.1";
  if (plan.one_node() && !meeting.endpoint) return "in this process, workers meet on a free port of 127.0.0.1";
  std::string text = meeting.backend == Backend::static_ ? "static, " : "c10d, ";
  text += meeting.endpoint ? to_string(*meeting.endpoint) : std::string{"localhost"};
  for (const Endpoint& each : meeting.endpoints) {
    if (each != meeting.endpoint) text += ", " + to_string(each);
  }
  for (const Port port : plan.scheduler.further_ports) text += fmt::format(", else {}", port.value());
  return text;
}

std::string store_text(const LaunchConfig& plan) {
  return plan.rendezvous.token.empty() ? "by each node's agent, not encrypted: there is no token"
                                       : "by each node's agent, encrypted by the token";
}

}  // namespace

std::string plan_text(const LaunchConfig& plan) {
  std::ostringstream text;
  const auto line = [&](const char* name, const std::string& value) {
    text << name << std::string(18 - std::min<std::size_t>(17, std::string_view{name}.size()), ' ') << value << '\n';
  };
  const auto told = [&](const char* name, const std::string& value, const std::string& from) {
    line(name, fmt::format("{}  ({})", value, from));
  };
  const auto number = [](auto value) { return fmt::format("{}", value); };
  if (!plan.scheduler.name.empty()) line("scheduler", plan.scheduler.name);
  told("nodes",
       plan.terms.min_nodes == plan.terms.max_nodes
           ? number(plan.terms.min_nodes)
           : fmt::format("{} to {}", plan.terms.min_nodes, plan.terms.max_nodes),
       plan.origins.nodes);
  if (const auto rank = plan.node_rank()) told("node rank", number(*rank), plan.origins.node_rank);
  if (!plan.scheduler.hosts.empty()) told("hosts", words_text(plan.scheduler.hosts), plan.scheduler.hosts_from);
  if (plan.hosts_count_workers()) {
    line("workers", "on each host its slots, else its GPUs, else 1");
  } else {
    told(plan.front ? "workers on each" : "workers here", number(plan.local_world_size), plan.origins.workers);
  }
  line("role", plan.role);
  told("rendezvous", rendezvous_text(plan), plan.origins.endpoint);
  told("run id", plan.rendezvous.run_id.value(), plan.origins.run_id);
  if (plan.terms.store_proxy && !plan.one_node()) told("workers' store", store_text(plan), "--store-proxy");
  if (!plan.preflight.only) {
    if (!plan.front) line("program", fmt::format("{}  ({})", plan.program.executable, plan.program.reason));
    line("command", words_text(plan.program.command));
  }
  if (!plan.preload.empty()) {
    std::string modules;
    for (const std::string& module : plan.preload) modules += (modules.empty() ? "" : ", ") + module;
    line("preload", modules);
  }
  constexpr std::array<const char*, 3> levels{"off", "quick", "full"};
  line("preflight", levels.at(static_cast<std::size_t>(plan.preflight.level)));
  if (!plan.preflight.health_check.empty()) line("health check", words_text({"sh", "-c", plan.preflight.health_check}));
  if (!plan.worker_hook) line("worker hook", "none");
  line("max restarts", number(plan.terms.max_restarts));
  told("stop", fmt::format("signal, {}, SIGKILL", exact_seconds(plan.stop_grace)), plan.origins.shutdown_timeout);
  if (plan.stop_before) line("save and stop", stop_text(plan));
  if (plan.requeue) line("requeue", fmt::format("{} times at most", plan.requeue->most));
  line("signals", plan.signals_to_handle);
  line("hangs", hang_text(plan.terms));
  line("stragglers", plan.terms.straggler_window == Duration{0}
                         ? "not looked for"
                         : "every " + exact_seconds(plan.terms.straggler_window));
  if (plan.rehearsal.script) line("rehearsal", statements_text(*plan.rehearsal.script));
  if (plan.rehearsal.nodes > 0)
    line("rehearsal nodes", fmt::format("{}, agents on this machine", plan.rehearsal.nodes));
  line("redirects", plan.output.redirects);
  line("tee", plan.output.tee);
  line("log folder", plan.output.log_dir.empty() ? "a temporary one" : plan.output.log_dir);
  for (const auto& [name, value] : plan.variables) line("variable", fmt::format("{}={}", name, value));
  for (std::size_t i = 0; i < plan.worker_variables.size(); ++i) {
    for (const auto& [name, value] : plan.worker_variables[i])
      line("variable", fmt::format("local rank {}: {}={}", i, name, value));
  }
  for (std::size_t i = 0; i < plan.worker_cpus.size(); ++i) {
    line("cpus", fmt::format("local rank {}: {}", i, to_cpu_list(plan.worker_cpus[i])));
  }
  for (const std::string& warning : plan.warnings) line("warning", warning);
  return text.str();
}

std::string variables_as_shell(const Variables& variables) {
  std::string text;
  for (const auto& [name, value] : variables) {
    std::string quoted;
    for (const char c : value) quoted += c == '\'' ? std::string{"'\\''"} : std::string{c};
    text += "export " + name + "='" + quoted + "'\n";
  }
  return text;
}

std::string variables_as_json(const Variables& variables) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [name, value] : variables) object[name] = value;
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace torchup
