#include "launcher/core/plan/plan_rehearsal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>

#include "launcher/core/plan/plan_steps.hpp"

namespace torchup {
namespace {

constexpr char file_mark = '@';

Result<RehearsalScript> read_script(const PlanSource& source) {
  const std::string given = source.options.text("rehearse");
  std::string text = given;
  std::string where;
  if (given.starts_with(file_mark)) {
    const std::string path = given.substr(1);
    auto content = source.machine.script(path);
    if (!content) return bad(fmt::format("--rehearse: {}", content.error().message()));
    text = *std::move(content);
    where = path + ":";
  }
  auto script = parse_rehearsal(text);
  if (!script) return bad(fmt::format("--rehearse: {}{}", where, script.error().message()));
  return script;
}

/// Nobody starts a node again but who has started it.
Result<> check_back(const RehearsalConfig& rehearsal) {
  if (rehearsal.nodes > 0 || rehearsal.node) return {};
  const auto& statements = rehearsal.script->statements;
  const auto back = std::ranges::find_if(statements, [](const auto& each) { return each.action.back.has_value(); });
  if (back == statements.end()) return {};
  return bad(
      fmt::format("--rehearse: '{}': back= needs --rehearse-nodes: nobody else starts a node again", to_text(*back)));
}

}  // namespace

OptionValues in_rehearsed_nodes(const OptionValues& options, const std::optional<RehearsedNode>& node) {
  OptionValues own = options;
  const auto started = options.integer("rehearse-nodes", 0);
  const std::int64_t nodes = node ? node->nodes : started ? *started : 0;
  if (nodes < 1 || nodes > rehearsed_nodes_max) return own;
  for (const char* const other : {"standalone", "node-rank", "master-addr", "master-port"}) own.unset(other);
  if (!own.has("nnodes")) own.set("nnodes", std::to_string(nodes), "--rehearse-nodes");
  own.set("scheduler", "none");
  own.set("rdzv-backend", "c10d");
  own.set("rdzv-endpoint", node ? fmt::format("127.0.0.1:{}", node->port.value()) : "127.0.0.1", "--rehearse-nodes");
  own.set("local-addr", "127.0.0.1");
  if (!node) return own;
  const std::string name = fmt::format("node{}", node->index);
  if (own.has("log-dir")) own.set("log-dir", own.text("log-dir") + "/" + name);
  if (own.has("result-file")) own.set("result-file", own.text("result-file") + "." + name);
  own.set("termination-log", "");
  return own;
}

bool ends_all_nodes(const LaunchConfig& plan, int signal) {
  const auto is_in = [signal](const auto& list) { return std::ranges::find(list, signal) != std::end(list); };
  constexpr std::array of_no_job{SIGCHLD, SIGTSTP, SIGCONT, SIGWINCH, SIGURG};
  if (is_in(plan.end_signals)) return !is_in(plan.drain_signals);
  return !is_in(of_no_job) && !is_in(plan.drain_signals) && !is_in(plan.forward_signals);
}

Result<> plan_rehearsal(const PlanSource& source, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  RehearsalConfig& rehearsal = plan.rehearsal;
  rehearsal.node = source.machine.rehearsed;
  const auto nodes = options.integer("rehearse-nodes", 0);
  if (!nodes) return nodes.error();
  if (options.has("rehearse-nodes")) {
    if (*nodes < 1 || *nodes > rehearsed_nodes_max) {
      return bad(fmt::format("--rehearse-nodes={} is not from 1 to {}", *nodes, rehearsed_nodes_max));
    }
    if (!options.has("rehearse")) {
      return bad("--rehearse-nodes needs --rehearse; 'expect exit=0' is the shortest script");
    }
    if (!rehearsal.node) rehearsal.nodes = static_cast<int>(*nodes);
  }
  if (!options.has("rehearse")) return {};
  if (plan.preflight.only) return bad("--rehearse: --preflight-only starts nothing that could have faults");
  auto script = read_script(source);
  if (!script) return script.error();
  rehearsal.script = *std::move(script);
  if (auto checked = check_back(rehearsal); !checked) return checked;
  const int started = rehearsal.node ? rehearsal.node->nodes : rehearsal.nodes;
  if (started == 0) return {};
  if (started < plan.terms.min_nodes || started > plan.terms.max_nodes) {
    return bad(fmt::format("--rehearse-nodes={}: the job is one of {} to {} nodes (--nnodes)", started,
                           plan.terms.min_nodes, plan.terms.max_nodes));
  }
  // As where the endpoint is node 0's: with that node the rendezvous is lost.
  if (rehearsal.node) plan.rendezvous.is_host = rehearsal.node->index == 0;
  return {};
}

}  // namespace torchup
