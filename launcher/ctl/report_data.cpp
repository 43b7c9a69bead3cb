#include "launcher/ctl/report_data.hpp"

#include <algorithm>
#include <array>

#include "launcher/ctl/values.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/link/node_report.hpp"

namespace torchup {
namespace {

void copy_members(const json& from, json& to, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const json* const value = member(from, name)) to[name] = *value;
  }
}

char letter_of_end(const json& event) {
  const std::string end = text_in(event, "end");
  if (end == "terminated") return 't';
  return end == "failed" ? 'x' : 'd';
}

}  // namespace

void ReportData::note_worker(Node& node, const std::string& kind, const json& event) {
  const auto local_rank = integer_in(event, "local_rank");
  if (!local_rank || *local_rank < 0 || *local_rank >= static_cast<std::int64_t>(node.ranks.size())) return;
  char& letter = node.ranks[static_cast<std::size_t>(*local_rank)];
  if (kind == "worker_started" || kind == "worker_kept") letter = 'r';
  if (kind == "worker_hung") letter = 'h';
  if (kind != "worker_exited") return;
  letter = letter_of_end(event);
  if (const auto step = integer_in(event, "last_step")) node.step = std::max(node.step.value_or(*step), *step);
}

void ReportData::note_of_job(const std::string& kind, const json& event) {
  const std::string time = text_in(event, "time");
  if (kind == "job_started") {
    copy_members(event, job_, {"run_id", "name", "min_nodes", "max_nodes", "max_restarts"});
    if (!job_.contains("started")) job_["started"] = time;
    if (!job_.contains("phase")) job_["phase"] = "gathering";
  } else if (kind == "round_completed") {
    copy_members(event, job_, {"round", "world_size", "restart_count"});
    job_["phase"] = "running";
  } else if (kind == "incident_recorded") {
    json incident = event;
    incident["seq"] = seq_;
    incidents_.push_back(std::move(incident));
    if (incidents_.size() > reported_incidents_max) incidents_.pop_front();
  } else if (kind == "job_ended") {
    job_["phase"] = "ended";
    job_["ended"] = time;
    json verdict = json::object();
    copy_members(event, verdict, {"exit_code", "reason", "failures"});
    job_["verdict"] = std::move(verdict);
  }
}

void ReportData::note_node(Node& node, const std::string& kind, const json& event) {
  if (kind == "job_started") {
    const std::int64_t workers = std::clamp<std::int64_t>(integer_in(event, "local_world_size").value_or(0), 0,
                                                          static_cast<std::int64_t>(local_workers_max));
    node.ranks.assign(static_cast<std::size_t>(workers), '-');
  } else if (kind == "round_completed") {
    node.state = "seated";
    node.group_rank = integer_in(event, "group_rank");
    node.first_rank = integer_in(event, "first_rank");
    node.round = integer_in(event, "round");
  } else if (kind == "progress") {
    node.step_min = integer_in(event, "step_min");
    node.step_max = integer_in(event, "step_max");
    node.per_second = number_in(event, "steps_per_second");
  } else if (kind == "membership_changed") {
    ++node.changes;
  } else if (kind == "attempt_ended") {
    node.state = "ready";
  } else if (kind == "job_ended") {
    node.state = "finished";
  }
}

void ReportData::add(const std::string& node_name, const json& event) {
  if (!event.is_object()) return;
  ++seq_;
  const std::string kind = text_in(event, "event");
  Node& node = nodes_[node_name];
  node.host = text_in(event, "host");
  note_node(node, kind, event);
  note_worker(node, kind, event);
  note_of_job(kind, event);
  job_["now"] = text_in(event, "time");
  json kept = event;
  kept["seq"] = seq_;
  events_.push_back(std::move(kept));
  if (events_.size() > reported_events_max) events_.pop_front();
}

std::vector<std::string> ReportData::incident_paths() const {
  std::vector<std::string> paths;
  for (const json& incident : incidents_) {
    if (std::string path = text_in(incident, "path"); !path.empty()) paths.push_back(std::move(path));
  }
  return paths;
}

void ReportData::add_incident_file(const std::string& path, const json& file) {
  if (!file.is_object()) return;
  for (json& incident : incidents_) {
    if (text_in(incident, "path") != path) continue;
    for (const auto& [name, value] : file.items()) incident.emplace(name, value);  // what the event says stays
  }
}

/// Of the nodes of the newest round; null where none has told of any.
json ReportData::steps() const {
  const auto newest = integer_in(job_, "round");
  std::optional<std::int64_t> least, most;
  std::optional<double> per_second;
  for (const auto& [name, node] : nodes_) {
    if (newest && node.round != newest) continue;
    if (node.step_min) least = std::min(least.value_or(*node.step_min), *node.step_min);
    most = std::max(most, node.step_max);
    per_second = std::max(per_second, node.per_second);
  }
  if (!most) return nullptr;
  return {{"min", least ? json(*least) : json(nullptr)},
          {"max", *most},
          {"per_second", per_second ? json(*per_second) : json(nullptr)}};
}

json ReportData::snapshot(const std::string& ledger) const {
  json all = job_;
  all["schema"] = 1;
  all["seq"] = seq_;
  if (auto parsed = parse_json(ledger)) all["ledger"] = *std::move(parsed);
  if (json steps_told = steps(); !steps_told.is_null()) all["step"] = std::move(steps_told);
  std::int64_t changes = 0;
  for (const auto& [name, node] : nodes_) changes = std::max(changes, node.changes);
  if (changes > 0) all["membership_changes"] = changes;
  std::array<std::int64_t, rank_states.size()> counts{};
  json nodes = json::object();
  const auto or_none = [](const std::optional<std::int64_t>& value) { return value ? json(*value) : json(nullptr); };
  for (const auto& [name, node] : nodes_) {
    for (const char letter : node.ranks) ++counts[rank_state_index(letter)];
    nodes[name] = {{"host", node.host},
                   {"state", node.state},
                   {"group_rank", or_none(node.group_rank)},
                   {"first_rank", or_none(node.first_rank)},
                   {"local_world_size", node.ranks.size()},
                   {"ranks", node.ranks},
                   {"step", or_none(node.step)},
                   {"agent", "torchup"}};
  }
  all["nodes"] = std::move(nodes);
  for (std::size_t i = 0; i < counts.size(); ++i) all["ranks"][std::string{rank_states[i].word}] = counts[i];
  all["incidents"] = json(std::vector<json>(incidents_.begin(), incidents_.end()));
  return all;
}

std::string ReportData::data(const std::string& ledger) const {
  const json all{{"snapshot", snapshot(ledger)},
                 {"events", std::vector<json>(events_.begin(), events_.end())},
                 {"lost", seq_ - events_.size()}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace torchup
