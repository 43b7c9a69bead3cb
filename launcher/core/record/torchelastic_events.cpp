#include "launcher/core/record/torchelastic_events.hpp"

#include "launcher/core/text/json.hpp"

namespace torchup {
namespace {

/// JSON with blanks after commas and colons and nothing but ASCII, as Python writes it: those who take these lines
/// apart with regular expressions know no other form.
std::string python_text(const ordered_json& value) {
  if (value.is_object()) {
    std::string text = "{";
    for (const auto& [key, inner] : value.items()) {
      if (text.size() > 1) text += ", ";
      text += ordered_json(key).dump(-1, ' ', true, ordered_json::error_handler_t::replace) + ": " + python_text(inner);
    }
    return text + "}";
  }
  if (value.is_array()) {
    std::string text = "[";
    for (const ordered_json& inner : value) {
      if (text.size() > 1) text += ", ";
      text += python_text(inner);
    }
    return text + "]";
  }
  return value.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
}

/// What torchrun would have read from the worker's error file.
std::string raw_error(const event::WorkerExited& exited) {
  ordered_json error;
  if (!exited.error_file.empty()) {
    error["message"] = exited.message;
  } else {
    error["message"] = "<NONE>";
    if (exited.exit_code > 0) {
      error["errorTraits"] = {{"category", "system_terminated_error"}, {"retryability", "False"}};
    }
  }
  return python_text(error);
}

}  // namespace

std::string TorchelasticEvents::apply(const LaunchEvent& event) {
  const std::int64_t now_us = event.at.monotonic_us;
  if (const auto* job = std::get_if<event::JobStarted>(&event.body)) {
    run_id_ = job->run_id;
    role_ = job->role;
    const std::string program = job->command.empty() ? "" : job->command.front();
    entry_point_ = program.substr(program.rfind('/') + 1);
    start_us_ = waiting_since_us_ = now_us;
  } else if (const auto* round = std::get_if<event::RoundCompleted>(&event.body)) {
    restart_count_ = round->placement.restart_count;
    // Told with the group rank of the round before, which is what the agent still has.
    std::string lines = agent_line("RENDEZVOUS", static_cast<double>(now_us - waiting_since_us_) / 1e3, "") +
                        agent_line("ASSIGN_WORKER_RANKS", 0.0, "");
    placement_ = round->placement;
    workers_.clear();
    return lines;
  } else if (const auto* started = std::get_if<event::WorkerStarted>(&event.body)) {
    const WorkerState worker{started->worker, std::nullopt};
    workers_.insert_or_assign(started->worker.local_rank.value(), worker);
    return worker_line("START", worker);
  } else if (const auto* kept = std::get_if<event::WorkerKept>(&event.body)) {
    const WorkerState worker{kept->worker, std::nullopt};
    workers_.insert_or_assign(kept->worker.local_rank.value(), worker);
    return worker_line("START", worker);
  } else if (const auto* exited = std::get_if<event::WorkerExited>(&event.body)) {
    const auto worker = workers_.find(exited->worker.local_rank.value());
    if (worker != workers_.end()) worker->second.exited = *exited;
  } else if (std::holds_alternative<event::AttemptEnded>(event.body)) {
    waiting_since_us_ = now_us;
  } else if (const auto* ended = std::get_if<event::JobEnded>(&event.body)) {
    run_time_s_ = (now_us - start_us_) / 1'000'000;
    return at_the_end(ended->verdict);
  }
  return "";
}

std::string TorchelasticEvents::at_the_end(const Verdict& verdict) {
  if (verdict.exit_code > 1 && verdict.exit_code != requeue_code)
    return agent_line("FAILED", std::nullopt, verdict.reason);
  std::string lines;
  for (const auto& [local_rank, worker] : workers_) {
    const bool failed = worker.exited && worker.exited->end != WorkerEnd::succeeded;
    lines += worker_line(failed ? "FAILED" : verdict.exit_code == 0 ? "SUCCEEDED" : "TERMINATED", worker);
  }
  return lines + agent_line("SUCCEEDED", std::nullopt, "");
}

std::string TorchelasticEvents::agent_line(const char* state, std::optional<double> duration_ms,
                                           const std::string& error) const {
  std::optional<int> group_rank;
  if (placement_) group_rank = placement_->group_rank.value();
  const auto group_world_size = placement_ ? std::optional{placement_->group_world_size} : std::nullopt;
  const ordered_json inner{{"group_world_size", or_null(group_world_size)}, {"entry_point", entry_point_}};
  const ordered_json metadata{{"run_id", run_id_},
                              {"global_rank", nullptr},
                              {"group_rank", or_null(group_rank)},
                              {"worker_id", nullptr},
                              {"role", role_},
                              {"hostname", host_},
                              {"state", state},
                              {"total_run_time", run_time_s_},
                              {"rdzv_backend", backend_},
                              {"raw_error", error.empty() ? ordered_json(nullptr) : ordered_json(error)},
                              {"metadata", python_text(inner)},
                              {"agent_restarts", restart_count_},
                              {"duration_ms", or_null(duration_ms)}};
  const ordered_json line{{"name", std::string{"torchelastic.worker.status."} + state},
                          {"source", "AGENT"},
                          {"timestamp", 0},
                          {"metadata", metadata}};
  return python_text(line) + "\n";
}

std::string TorchelasticEvents::worker_line(const char* state, const WorkerState& worker) const {
  const bool failed = worker.exited && worker.exited->end != WorkerEnd::succeeded;
  const Placement placement = placement_.value_or(Placement{});
  const WorkerId& id = worker.worker;
  const ordered_json inner{
      {"group_world_size", placement.group_world_size},
      {"entry_point", entry_point_},
      {"local_rank", ordered_json::array({id.local_rank.value()})},
      {"role_rank", ordered_json::array({placement.first_role_rank.value() + id.local_rank.value()})},
      {"role_world_size", ordered_json::array({placement.role_world_size})},
      {"exit_code", ordered_json::array({failed ? ordered_json(worker.exited->exit_code) : ordered_json(nullptr)})},
      {"worker_pid", ordered_json::array({failed ? ordered_json(id.pid) : ordered_json(nullptr)})}};
  const ordered_json metadata{{"run_id", run_id_},
                              {"global_rank", id.rank.value()},
                              {"group_rank", placement.group_rank.value()},
                              {"worker_id", std::to_string(id.pid)},
                              {"role", role_},
                              {"hostname", host_},
                              {"state", state},
                              {"total_run_time", run_time_s_},
                              {"rdzv_backend", backend_},
                              {"raw_error", failed ? ordered_json(raw_error(*worker.exited)) : ordered_json(nullptr)},
                              {"metadata", python_text(inner)},
                              {"agent_restarts", restart_count_},
                              {"duration_ms", nullptr}};
  const ordered_json line{{"name", std::string{"torchelastic.worker.status."} + state},
                          {"source", "WORKER"},
                          {"timestamp", 0},
                          {"metadata", metadata}};
  return python_text(line) + "\n";
}

}  // namespace torchup
