// The table of --preflight-only, for people and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "launcher/core/diagnosis/preflight.hpp"
#include "launcher/core/text/json.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/membership/same_world.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

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

/// What the table says of a check; nothing where it was not made.
std::optional<FindingLevel> level_of(const NodePreflight& node, Check check, bool versions_differ) {
  // A node on which none were found differs, too, from one that has some.
  if (check == Check::versions && versions_differ) return FindingLevel::warning;
  if (!was_checked(node, check)) return std::nullopt;
  FindingLevel worst = FindingLevel::good;
  for (const Finding& finding : node.findings) {
    if (finding.check == check) worst = std::max(worst, finding.level);
  }
  return worst;
}

ordered_json checks_json(const NodePreflight& node, bool versions_differ) {
  auto checks = ordered_json::array();
  const auto add = [&checks](Check check, FindingLevel level, const std::string& text, const std::string& remedy) {
    checks.push_back({{"check", to_text(check)}, {"level", to_text(level)}, {"text", text}, {"remedy", remedy}});
  };
  for (const Check check : checks_in_order) {
    const auto level = level_of(node, check, versions_differ);
    if (!level) continue;
    bool found = false;
    for (const Finding& finding : node.findings) {
      if (finding.check != check) continue;
      found = true;
      add(check, finding.level, finding.text, finding.remedy);
    }
    if (!found) add(check, *level, "", "");
  }
  return checks;
}

}  // namespace

int preflight_code(std::span<const NodePreflight> nodes, int min_nodes) {
  if (std::cmp_less(nodes.size(), min_nodes)) return exit_code::too_few;
  return std::cmp_less(std::ranges::count_if(nodes, is_fit_node), min_nodes) ? exit_code::unfit : 0;
}

std::string preflight_table(std::span<const NodePreflight> nodes) {
  const std::string differences = version_differences(nodes);
  const auto used = [&](Check check) {
    return std::ranges::any_of(
        nodes, [&](const NodePreflight& node) { return level_of(node, check, !differences.empty()).has_value(); });
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
    add_row(printable_start(node.host), [&](Check check) {
      const auto level = level_of(node, check, !differences.empty());
      return level ? to_text(*level) : not_done;
    });
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
  const std::string differences = version_differences(nodes);
  auto list = ordered_json::array();
  for (const NodePreflight& node : nodes) {
    auto versions = ordered_json::object();
    for (const Fact& fact : node.versions) versions[fact.name] = fact.value;
    list.push_back({{"host", node.host},
                    {"fit", is_fit_node(node)},
                    {"versions", std::move(versions)},
                    {"checks", checks_json(node, !differences.empty())}});
  }
  const ordered_json whole{{"schema", preflight_schema},
                           {"exit_code", preflight_code(nodes, min_nodes)},
                           {"nodes", std::move(list)},
                           {"differences", differences}};
  return whole.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace torchup
