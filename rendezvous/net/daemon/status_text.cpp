#include "rendezvous/net/daemon/status_text.hpp"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rendezvous/core/membership/seating.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/store/store_server.hpp"

namespace torchup {
namespace {

nlohmann::ordered_json job_json(const JobView& job) {
  nlohmann::ordered_json page{{"phase", job.phase},
                              {"round", job.round.value()},
                              {"min_nodes", job.min_nodes},
                              {"max_nodes", job.max_nodes},
                              {"restart_count", job.restart_count},
                              {"membership_changes", job.membership_changes},
                              {"world_size", job.world_size},
                              {"master", job.master},
                              {"waits_for", job.waits_for},
                              {"last", job.last},
                              {"nodes", nlohmann::ordered_json::array()}};
  if (job.max_nodes == 0) {  // what only torchrun's agents know
    for (const char* name : {"min_nodes", "max_nodes", "restart_count", "membership_changes"}) page.erase(name);
  }
  std::vector<JobView::Node> nodes = job.nodes;
  std::ranges::sort(nodes, natural_less, &JobView::Node::host);
  for (const JobView::Node& node : nodes) {
    nlohmann::ordered_json row{{"host", node.host}, {"state", node.state}};
    if (!node.reason.empty()) row["reason"] = node.reason;
    if (node.group_rank) row["group_rank"] = node.group_rank->value();
    if (node.torchruns) row["agent"] = "torchrun";
    if (node.local_world_size > 0) row["local_world_size"] = node.local_world_size;
    page["nodes"].push_back(std::move(row));
  }
  if (job.more_missing > 0) page["more_missing"] = job.more_missing;
  if (job.verdict) page["verdict"] = {{"exit_code", job.verdict->exit_code}, {"reason", job.verdict->reason}};
  return page;
}

}  // namespace

std::string status_text(const StoreServerStatus& status, const Coordinator& coordinator) {
  nlohmann::ordered_json page{{"connections", status.connections},
                              {"keys", status.keys},
                              {"queues", status.queues},
                              {"bytes", status.bytes},
                              {"waiting", status.waiting},
                              {"arriving_bytes", status.arriving_bytes},
                              {"unread_bytes", status.unread_bytes},
                              {"accepted", status.accepted},
                              {"refused", status.refused},
                              {"requests", status.requests}};
  if (const auto role = coordinator.role()) {
    auto& shown = page["coordinator"];
    shown = {{"role", role->role}, {"term", role->term}, {"endpoints", role->endpoints}};
    shown["etcd"] = {{"last_confirmed_s", nullptr}, {"error", role->error}};
    if (role->last_confirmed) {
      shown["etcd"]["last_confirmed_s"] = std::chrono::duration<double>{*role->last_confirmed}.count();
    }
  }
  page["jobs"] = nlohmann::ordered_json::object();
  for (const auto& [run_id, job] : coordinator.jobs()) page["jobs"][run_id.value()] = job_json(job);
  return page.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace torchup
