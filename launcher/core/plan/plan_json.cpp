#include "launcher/core/plan/plan_json.hpp"

#include <fmt/format.h>

#include <chrono>
#include <tuple>
#include <utility>

#include "launcher/core/text/json.hpp"

namespace torchup {
namespace {

ordered_json told(ordered_json value, const std::string& from) {
  ordered_json object = ordered_json::object();
  object["value"] = std::move(value);
  object["from"] = from;
  return object;
}

ordered_json endpoint_json(const LaunchConfig& plan) {
  const Endpoint& endpoint = *plan.rendezvous.endpoint;
  ordered_json object = ordered_json::object();
  object["value"] = to_string(endpoint);
  for (const Port port : plan.scheduler.further_ports)
    object["also"].push_back(to_string(Endpoint{endpoint.host, port}));
  for (const Endpoint& other : plan.rendezvous.endpoints) {
    if (other != endpoint) object["also"].push_back(to_string(other));
  }
  object["from"] = plan.origins.endpoint;
  return object;
}

}  // namespace

std::string nodes_text(const JobTerms& terms) {
  return terms.min_nodes == terms.max_nodes ? fmt::format("{}", terms.min_nodes)
                                            : fmt::format("{}:{}", terms.min_nodes, terms.max_nodes);
}

std::string plan_as_json(const LaunchConfig& plan) {
  const auto& [scheduler, origins] = std::tie(plan.scheduler, plan.origins);
  ordered_json object = ordered_json::object();
  object["scheduler"] = scheduler.name.empty() ? ordered_json(nullptr) : ordered_json(scheduler.name);
  object["nodes"] = told(nodes_text(plan.terms), origins.nodes);
  if (!plan.hosts_count_workers()) object["workers"] = told(plan.local_world_size, origins.workers);
  if (const auto rank = plan.node_rank()) object["node_rank"] = told(*rank, origins.node_rank);
  if (!scheduler.hosts.empty()) object["hosts"] = told(scheduler.hosts, scheduler.hosts_from);
  if (plan.rendezvous.endpoint) object["endpoint"] = endpoint_json(plan);
  if (plan.rendezvous.etcd) {
    ordered_json& etcd = object["etcd"];
    for (const Endpoint& member : plan.rendezvous.etcd->members) etcd["members"].push_back(to_string(member));
    etcd["prefix"] = plan.rendezvous.etcd->conf.prefix;
    etcd["from"] = origins.endpoint;
  }
  object["run_id"] = told(plan.rendezvous.run_id.value(), origins.run_id);
  if (plan.terms.store_proxy) object["store_proxy"] = told(true, "--store-proxy");
  const auto grace = std::chrono::duration_cast<std::chrono::seconds>(plan.stop_grace);
  object["shutdown_timeout"] = told(grace.count(), origins.shutdown_timeout);
  if (plan.deadline) object["deadline"] = told(*plan.deadline, origins.deadline);
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace torchup
