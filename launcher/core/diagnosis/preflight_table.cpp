// The table of --preflight-only, for people and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "launcher/core/diagnosis/preflight.hpp"
#include "launcher/core/text/json.hpp"
#include "rendezvous/core/membership/same_world.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr int preflight_unfit_code = 65;
constexpr int preflight_few_code = 66;
constexpr std::array checks_in_order{Check::shm,   Check::nofile, Check::memlock, Check::pids,
                                     Check::disk,  Check::gpu,    Check::clock,   Check::versions,
                                     Check::pairs, Check::nccl,   Check::health};
constexpr std::string_view not_done = "-";

bool is_fit_node(const NodePreflight& node) {
  return std::ranges::none_of(node.findings, [](const Finding& one) { return one.level == FindingLevel::unfit; });
}

/// Of the versions of all nodes; empty when they are alike.
std::string version_differences(std::span<const NodePreflight> nodes) {
  std::vector<HostFacts> hosts;
  for (const NodePreflight& node : nodes) hosts.push_back({&node.host, &node.versions});
  return world_differences(hosts);
}

bool was_checked(const NodePreflight& node, Check check) {
  return std::ranges::find(node.done, check) != node.done.end() ||
         std::ranges::find(node.findings, check, &Finding::check) != node.findings.end();
}

std::string_view preflight_cell(const NodePreflight& node, Check check, bool versions_differ) {
  if (!was_checked(node, check)) return not_done;
  FindingLevel worst = check == Check::versions && versions_differ ? FindingLevel::warning : FindingLevel::good;
  for (const Finding& finding : node.findings) {
    if (finding.check == check) worst = std::max(worst, finding.level);
  }
  return to_text(worst);
}

ordered_json checks_json(const NodePreflight& node) {
  auto checks = ordered_json::array();
  for (const Check check : checks_in_order) {
    bool found = false;
    for (const Finding& finding : node.findings) {
      if (finding.check != check) continue;
      found = true;
      checks.push_back({{"check", to_text(check)},
                        {"level", to_text(finding.level)},
                        {"text", finding.text},
                        {"remedy", finding.remedy}});
    }
    if (!found && was_checked(node, check)) {
      checks.push_back(
          {{"check", to_text(check)}, {"level", to_text(FindingLevel::good)}, {"text", ""}, {"remedy", ""}});
    }
  }
  return checks;
}

}  // namespace

int preflight_code(std::span<const NodePreflight> nodes, int min_nodes) {
  if (std::cmp_less(nodes.size(), min_nodes)) return preflight_few_code;
  return std::cmp_less(std::ranges::count_if(nodes, is_fit_node), min_nodes) ? preflight_unfit_code : 0;
}

std::string preflight_table(std::span<const NodePreflight> nodes) {
  const std::string differences = version_differences(nodes);
  const auto used = [&](Check check) {
    return std::ranges::any_of(nodes, [&](const NodePreflight& node) { return was_checked(node, check); });
  };
  constexpr std::size_t cell_width = 7;  // "warning"
  std::size_t host_width = std::string_view{"node"}.size();
  for (const NodePreflight& node : nodes) host_width = std::max(host_width, printable_start(node.host).size());

  std::string table;
  const auto add_row = [&](const std::string& first, const auto& text_of) {
    std::string row = fmt::format("{:<{}}", first, host_width);
    for (const Check check : checks_in_order) {
      if (used(check)) row += fmt::format("  {:<{}}", text_of(check), std::max(cell_width, to_text(check).size()));
    }
    row.resize(row.find_last_not_of(' ') + 1);
    table += row + "\n";
  };
  add_row("node", [](Check check) { return to_text(check); });
  for (const NodePreflight& node : nodes) {
    add_row(printable_start(node.host), [&](Check check) { return preflight_cell(node, check, !differences.empty()); });
  }
  for (const NodePreflight& node : nodes) {
    for (const Finding& finding : node.findings) {
      table += fmt::format("{}: {}: {}\n", printable_start(node.host), to_text(finding.level), line_of(finding));
    }
  }
  if (!differences.empty()) table += fmt::format("versions differ: {}\n", printable(differences));
  return table;
}

std::string preflight_json(std::span<const NodePreflight> nodes, int min_nodes) {
  auto list = ordered_json::array();
  for (const NodePreflight& node : nodes) {
    auto versions = ordered_json::object();
    for (const Fact& fact : node.versions) versions[fact.name] = fact.value;
    list.push_back({{"host", node.host},
                    {"fit", is_fit_node(node)},
                    {"versions", std::move(versions)},
                    {"checks", checks_json(node)}});
  }
  const ordered_json whole{{"schema", preflight_schema},
                           {"exit_code", preflight_code(nodes, min_nodes)},
                           {"nodes", std::move(list)},
                           {"differences", version_differences(nodes)}};
  return whole.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace torchup
