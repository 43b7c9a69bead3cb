#include <fmt/format.h>

#include <algorithm>

#include "launcher/core/scheduler/rows.hpp"
#include "launcher/core/text/json.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup::scheduler {
namespace {

void take_hosts(Allocation& found, std::vector<std::string> hosts, int node, const char* name) {
  found.nodes = Told<int>{static_cast<int>(hosts.size()), name};
  found.own_name = hosts.at(static_cast<std::size_t>(node));
  found.first_host = Told<std::string>{hosts.front(), name};
  found.hosts = Told<std::vector<std::string>>{std::move(hosts), name};
}

/// The names in a list of JSON. Errors: what is wrong with it.
Result<std::vector<std::string>> names_of_json(std::string_view text) {
  const auto list = parse_json(text);
  if (!list) return list.error();
  std::vector<std::string> names;
  for (const json& name : *list) {
    if (!list->is_array() || !name.is_string()) return fail(errc::bad_value, "it is no list of names");
    names.push_back(name.get<std::string>());
  }
  const std::size_t told = names.size();
  if (auto why = keep_first_of_each(names)) return fail(errc::bad_value, *std::move(why));
  if (names.empty() || names.size() != told) return fail(errc::bad_value, "it names no host, or one of them twice");
  return names;
}

}  // namespace

Result<std::optional<Allocation>> sagemaker_row(const ToldWords& words) {
  const auto list = words.text("SM_HOSTS");
  const auto own = words.text("SM_CURRENT_HOST");
  if (!list || !own) return std::optional<Allocation>{};
  auto hosts = names_of_json(*list);
  if (!hosts) return wrong("SM_HOSTS", *list, hosts.error().message());
  const auto place = std::ranges::find(*hosts, *own);
  if (place == hosts->end()) return wrong("SM_CURRENT_HOST", *own, fmt::format("it is not in SM_HOSTS={}", *list));
  const auto gpus = words.number("SM_NUM_GPUS", 0, local_workers_max);
  if (!gpus) return gpus.error();
  Allocation found{.scheduler = "sagemaker", .each = true};
  const auto node = static_cast<int>(place - hosts->begin());
  found.node = Told<int>{node, "SM_CURRENT_HOST"};
  take_hosts(found, *std::move(hosts), node, "SM_HOSTS");
  found.port = Told<Port>{c10d_default_port, "default"};
  if (const auto name = words.text("TRAINING_JOB_NAME")) {
    found.run_id = Told<std::string>{"sagemaker." + *name, "TRAINING_JOB_NAME"};
  }
  if (*gpus) found.gpus = Told<int>{static_cast<int>(**gpus), "SM_NUM_GPUS"};
  return std::optional{std::move(found)};
}

Result<std::optional<Allocation>> azureml_row(const ToldWords& words) {
  const auto first = words.text("MASTER_ADDR");
  if (!words.has("AZUREML_NODE_COUNT") || !words.has("NODE_RANK") || !first) return std::optional<Allocation>{};
  const auto nodes = words.needed("AZUREML_NODE_COUNT", 1, nodes_max);
  if (!nodes) return nodes.error();
  const auto node = words.needed("NODE_RANK", 0, *nodes - 1);
  auto port = words.port("MASTER_PORT");
  if (!node || !port) return node ? port.error() : node.error();
  Allocation found{.scheduler = "azureml", .each = true, .gpus_visible = true};
  found.nodes = Told<int>{*nodes, "AZUREML_NODE_COUNT"};
  found.node = Told<int>{*node, "NODE_RANK"};
  found.first_host = Told<std::string>{*first, "MASTER_ADDR"};
  found.port = *std::move(port);
  if (const auto id = words.text("AZUREML_RUN_ID"))
    found.run_id = Told<std::string>{"azureml." + *id, "AZUREML_RUN_ID"};
  return std::optional{std::move(found)};
}

Result<std::optional<Allocation>> skypilot_row(const ToldWords& words) {
  const auto list = words.text("SKYPILOT_NODE_IPS");
  if (!list || !words.has("SKYPILOT_NODE_RANK")) return std::optional<Allocation>{};
  std::vector<std::string> hosts;
  for (const std::string_view line : split(*list, '\n')) {
    if (const auto address = stripped(line); !address.empty()) hosts.emplace_back(address);
  }
  if (const auto why = keep_first_of_each(hosts)) return wrong("SKYPILOT_NODE_IPS", *list, *why);
  if (hosts.empty()) return wrong("SKYPILOT_NODE_IPS", *list, "it names no host");
  const auto node = words.needed("SKYPILOT_NODE_RANK", 0, static_cast<int>(hosts.size()) - 1);
  const auto gpus = words.number("SKYPILOT_NUM_GPUS_PER_NODE", 0, local_workers_max);
  if (!node || !gpus) return node ? gpus.error() : node.error();
  Allocation found{.scheduler = "skypilot", .each = true};
  found.node = Told<int>{*node, "SKYPILOT_NODE_RANK"};
  take_hosts(found, std::move(hosts), *node, "SKYPILOT_NODE_IPS");
  if (const auto id = words.text("SKYPILOT_TASK_ID")) {
    found.run_id = Told<std::string>{"skypilot." + *id, "SKYPILOT_TASK_ID"};
  }
  if (*gpus) found.gpus = Told<int>{static_cast<int>(**gpus), "SKYPILOT_NUM_GPUS_PER_NODE"};
  return std::optional{std::move(found)};
}

}  // namespace torchup::scheduler
