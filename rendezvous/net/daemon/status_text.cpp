#include "rendezvous/net/daemon/status_text.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/membership/seating.hpp"
#include "rendezvous/core/text/json_text.hpp"
#include "rendezvous/net/coordinator/coordinator.hpp"
#include "rendezvous/net/store/store_server.hpp"

namespace torchup {
namespace {

void put_node(std::string& out, const JobView::Node& node) {
  JsonObject row{out};
  row.text("host", node.host).text("state", node.state);
  if (!node.reason.empty()) row.text("reason", node.reason);
  if (node.group_rank) row.number("group_rank", node.group_rank->value());
  if (node.torchruns) row.text("agent", "torchrun");
  if (node.local_world_size > 0) row.number("local_world_size", node.local_world_size);
  row.end();
}

/// A line for each.
std::string nodes_json(std::vector<JobView::Node> nodes) {
  std::ranges::sort(nodes, natural_less, &JobView::Node::host);
  std::string list = "[";
  for (const JobView::Node& node : nodes) {
    list += list.size() > 1 ? ",\n" : "\n";
    put_node(list, node);
  }
  return list + "]";
}

std::string job_json(JobView job) {
  std::string out;
  JsonObject page{out};
  page.text("phase", job.phase).number("round", job.round.value());
  if (job.max_nodes > 0) {  // else only torchrun's agents know
    page.number("min_nodes", job.min_nodes)
        .number("max_nodes", job.max_nodes)
        .number("restart_count", job.restart_count)
        .number("membership_changes", job.membership_changes);
  }
  page.number("world_size", job.world_size)
      .text("master", job.master)
      .text("waits_for", job.waits_for)
      .text("last", job.last)
      .json("nodes", nodes_json(std::move(job.nodes)));
  if (job.more_missing > 0) page.number("more_missing", static_cast<std::int64_t>(job.more_missing));
  if (job.verdict) {
    std::string verdict;
    JsonObject{verdict}.number("exit_code", job.verdict->exit_code).text("reason", job.verdict->reason).end();
    page.json("verdict", verdict);
  }
  page.end();
  return out;
}

/// Who keeps the seat, as far as this process knows.
std::string role_json(const Coordinator::Role& role) {
  std::string endpoints = "[";
  for (const std::string& endpoint : role.endpoints) {
    if (endpoints.size() > 1) endpoints += ',';
    put_json(endpoints, endpoint);
  }
  std::string etcd;
  JsonObject confirmed{etcd};
  if (role.last_confirmed) {
    confirmed.real("last_confirmed_s", std::chrono::duration<double>{*role.last_confirmed}.count());
  } else {
    confirmed.null("last_confirmed_s");
  }
  confirmed.text_or_null("error", role.error).end();
  std::string out;
  JsonObject{out}
      .text("role", role.role)
      .number("term", role.term)
      .json("endpoints", endpoints + "]")
      .json("etcd", etcd)
      .end();
  return out;
}

}  // namespace

std::string status_text(const StoreServerStatus& status, const Coordinator& coordinator) {
  std::string jobs = "{";
  for (auto& [run_id, job] : coordinator.jobs()) {
    jobs += jobs.size() > 1 ? ",\n" : "\n";
    put_json(jobs, run_id.value());
    jobs += ':' + job_json(std::move(job));
  }
  std::string out;
  const auto number = [](std::uint64_t count) { return static_cast<std::int64_t>(count); };
  JsonObject page{out};
  page.number("connections", number(status.connections))
      .number("keys", number(status.keys))
      .number("queues", number(status.queues))
      .number("bytes", number(status.bytes))
      .number("waiting", number(status.waiting))
      .number("arriving_bytes", number(status.arriving_bytes))
      .number("unread_bytes", number(status.unread_bytes))
      .number("accepted", number(status.accepted))
      .number("refused", number(status.refused))
      .number("requests", number(status.requests));
  if (const auto role = coordinator.role()) page.json("coordinator", role_json(*role));
  page.json("jobs", jobs + "}").end();
  return out + "\n";
}

}  // namespace torchup
