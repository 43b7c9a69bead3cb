#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/scheduler/rows.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup::scheduler {
namespace {

constexpr std::size_t hosts_file_bytes_max = std::size_t{1} << 20;
constexpr const char* hosts_file = "/etc/hosts";

/// The longest of our names in /etc/hosts, which has our domain; our host's where there is none.
std::string longest_own_name(const ToldWords& words) {
  const std::string_view own = std::string_view{words.host()}.substr(0, words.host().find('.'));
  std::string longest = words.host();
  const auto content = words.facts().file(hosts_file, hosts_file_bytes_max);
  if (!content || content->size() > hosts_file_bytes_max) return longest;
  for (std::string_view line : split(*content, '\n')) {
    line = line.substr(0, line.find('#'));
    while (!(line = stripped(line)).empty()) {
      const std::string_view name = line.substr(0, line.find_first_of(blanks));
      line.remove_prefix(name.size());
      if (name.substr(0, name.find('.')) == own && name.size() > longest.size()) longest = name;
    }
  }
  return longest;
}

}  // namespace

Result<std::optional<Allocation>> volcano_row(const ToldWords& words) {
  for (const char* const name : {"VC_TASK_INDEX", "MASTER_ADDR", "RANK", "WORLD_SIZE"}) {
    if (!words.has(name)) return std::optional<Allocation>{};
  }
  const auto nodes = words.needed("WORLD_SIZE", 1, nodes_max);
  if (!nodes) return nodes.error();
  const auto node = words.needed("RANK", 0, *nodes - 1);
  auto port = words.port("MASTER_PORT");
  if (!node || !port) return node ? port.error() : node.error();
  const std::string first = *words.text("MASTER_ADDR");
  Allocation found{.scheduler = "volcano", .each = true, .gpus_visible = true};
  found.nodes = Told<int>{*nodes, "WORLD_SIZE"};
  found.node = Told<int>{*node, "RANK"};
  found.first_host = Told<std::string>{first, "MASTER_ADDR"};
  found.port = port->value_or(Told<Port>{c10d_default_port, "default"});
  found.run_id = Told<std::string>{"volcano." + first, "MASTER_ADDR"};
  return std::optional{std::move(found)};
}

Result<std::optional<Allocation>> kubernetes_row(const ToldWords& words) {
  if (!words.has("KUBERNETES_SERVICE_HOST") || !words.has("JOB_COMPLETION_INDEX")) return std::optional<Allocation>{};
  const auto index = words.needed("JOB_COMPLETION_INDEX", 0, nodes_max - 1);
  if (!index) return index.error();
  Allocation found{.scheduler = "kubernetes", .each = true, .gpus_visible = true};
  found.node = Told<int>{*index, "JOB_COMPLETION_INDEX"};
  const std::string name = longest_own_name(words);
  const auto dot = std::min(name.find('.'), name.size());
  std::string_view pod = std::string_view{name}.substr(0, dot);
  const std::string ending = fmt::format("-{}", *index);
  if (!pod.ends_with(ending)) return std::optional{std::move(found)};  // it has its machine's name
  pod.remove_suffix(ending.size());
  found.first_host =
      Told<std::string>{fmt::format("{}-0{}", pod, name.substr(dot)), "JOB_COMPLETION_INDEX, this host's name"};
  found.port = Told<Port>{c10d_default_port, "default"};
  found.run_id = Told<std::string>{fmt::format("kubernetes.{}", pod), "this host's name"};
  return std::optional{std::move(found)};
}

}  // namespace torchup::scheduler
