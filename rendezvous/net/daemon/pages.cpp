#include "rendezvous/net/daemon/pages.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "rendezvous/core/text/printable.hpp"
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
  for (const JobView::Node& node : job.nodes) {
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

std::string status_page(const StoreServerStatus& status, const Coordinator& coordinator) {
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
  page["jobs"] = nlohmann::ordered_json::object();
  for (const auto& [run_id, job] : coordinator.jobs()) page["jobs"][run_id.value()] = job_json(job);
  return page.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// As a label's value may be written.
std::string label(std::string_view text) {
  std::string escaped;
  for (const char c : printable(text)) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string late_workers(const Coordinator& coordinator) {
  std::string text;
  for (const auto& [run_id, workers] : coordinator.late_workers()) {
    for (const LateWorker& worker : workers) {
      text += fmt::format("torchup_worker_late_seconds{{job=\"{}\",rank=\"{}\",host=\"{}\"}} {:.9f}\n",
                          label(run_id.value()), worker.rank.value(), label(worker.host),
                          std::chrono::duration<double>{worker.late}.count());
    }
  }
  if (text.empty()) return text;
  return "# HELP torchup_worker_late_seconds How much later than the other workers of its node a worker begins "
         "collectives, the median of the last window.\n# TYPE torchup_worker_late_seconds gauge\n" +
         text;
}

std::string metrics_page(const StoreServerStatus& status, const Coordinator& coordinator) {
  std::string text;
  const auto add = [&](const std::string& name, const char* type, const char* help, std::uint64_t value) {
    text += fmt::format("# HELP torchup_store_{0} {1}\n# TYPE torchup_store_{0} {2}\ntorchup_store_{0} {3}\n", name,
                        help, type, value);
  };
  add("connections", "gauge", "TCPStore clients connected now.", status.connections);
  add("keys", "gauge", "Plain keys in the store.", status.keys);
  add("queues", "gauge", "Queues in the store.", status.queues);
  add("bytes", "gauge", "Bytes of keys, values and queue elements.", status.bytes);
  add("waiting", "gauge", "Clients with an open wait or barrier.", status.waiting);
  add("arriving_bytes", "gauge", "Memory held by unfinished requests.", status.arriving_bytes);
  add("unread_bytes", "gauge", "Bytes of answers on their way to clients.", status.unread_bytes);
  add("accepted_total", "counter", "Connections accepted.", status.accepted);
  add("refused_total", "counter", "Connections closed for what they sent or at a limit.", status.refused);
  add("requests_total", "counter", "Requests served.", status.requests);
  return text + late_workers(coordinator);
}

}  // namespace

HttpOptions::Pages pages(std::function<StoreServerStatus()> status, const Coordinator& coordinator) {
  const HttpOptions::Page serving = probe_page([] { return "ok"; });  // who is not, does not answer
  return {
      {"/healthz", serving},
      {"/readyz", serving},
      {"/metrics",
       {"text/plain; version=0.0.4; charset=utf-8",
        [status, &coordinator] { return metrics_page(status(), coordinator); }}},
      {"/status", {"application/json", [status, &coordinator] { return status_page(status(), coordinator); }}},
  };
}

}  // namespace torchup
