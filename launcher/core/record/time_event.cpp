#include "launcher/core/record/time_event.hpp"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <utility>

#include "launcher/core/text/json.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

namespace te = time_event;
using Body = std::optional<te::Body>;

constexpr std::int64_t number_max = std::numeric_limits<std::int64_t>::max();

te::Steps steps_of(Rank rank, const WorkerSteps& steps) {
  return {rank.value(), steps.first_step, steps.last_step, steps.first_us, steps.last_us, steps.waited_us};
}

struct OfEvent {
  Body operator()(const event::JobStarted& e) const { return te::JobStarted{e.run_id, e.local_world_size}; }
  Body operator()(const event::Waiting&) const { return te::Waiting{}; }
  Body operator()(const event::RoundCompleted& e) const {
    const Placement& place = e.placement;
    return te::RoundCompleted{place.round.value(), place.first_rank.value(), place.restart_count};
  }
  Body operator()(const event::WorkerStarted& e) const { return te::WorkerStarted{e.worker.local_rank.value()}; }
  Body operator()(const event::WorkerKept& e) const { return te::WorkerStarted{e.worker.local_rank.value()}; }
  Body operator()(const event::WorkerExited& e) const {
    te::WorkerExited exited{e.worker.local_rank.value(), e.end == WorkerEnd::failed};
    if (e.steps) exited.steps = steps_of(e.worker.rank, *e.steps);
    return exited;
  }
  Body operator()(const event::Progress& e) const {
    te::Progress progress;
    for (const auto& [rank, steps] : e.ranks) progress.ranks.push_back(steps_of(rank, steps));
    return progress;
  }
  Body operator()(const event::HangFound& e) const {
    const bool hangs = e.kind != HangKind::busy && e.kind != HangKind::debugged;
    return hangs ? Body{te::HangFound{}} : std::nullopt;
  }
  Body operator()(const event::WorkerHung&) const { return te::HangFound{true}; }
  Body operator()(const event::Stopping&) const { return te::Stopping{}; }
  Body operator()(const event::AttemptEnded&) const { return te::AttemptEnded{}; }
  Body operator()(const event::Restarting&) const { return te::RoundFollows{true}; }
  Body operator()(const event::MembershipChanged&) const { return te::RoundFollows{false}; }
  Body operator()(const event::JobEnded& e) const { return te::JobEnded{!e.verdict.failures.empty()}; }
  template <class Other>
  Body operator()(const Other&) const {
    return std::nullopt;
  }
};

/// The members of one line. What is missing, or is no number in its range, is told once, at the end.
class Members {
 public:
  explicit Members(const json& object) : object_{object} {}

  [[nodiscard]] bool has(const char* name) const { return member(object_, name) != nullptr; }
  std::int64_t number(const char* name, std::int64_t least, std::int64_t greatest) {
    const json* const value = member(object_, name);
    if (value == nullptr || !value->is_number_integer()) return miss(name);
    if (value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(number_max)) {
      return miss(name);
    }
    const auto read = value->get<std::int64_t>();
    return read >= least && read <= greatest ? read : miss(name);
  }
  int small(const char* name, int least, int greatest) { return static_cast<int>(number(name, least, greatest)); }
  std::string text(const char* name) {
    const json* const value = member(object_, name);
    if (value != nullptr && value->is_string()) return value->get<std::string>();
    miss(name);
    return {};
  }
  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  std::int64_t miss(const char* name) {
    if (missing_.empty()) missing_ = name;
    return 0;
  }

  const json& object_;
  std::string missing_;
};

/// A list of integers; empty: it is none, or no `length` of them.
std::vector<std::int64_t> row_of(const json& list, std::size_t length) {
  std::vector<std::int64_t> row;
  if (!list.is_array() || list.size() < length) return row;
  for (std::size_t i = 0; i < length; ++i) {
    if (!list[i].is_number_integer()) return {};
    row.push_back(list[i].is_number_unsigned()
                      ? static_cast<std::int64_t>(std::min(list[i].get<std::uint64_t>(), std::uint64_t{1} << 62))
                      : list[i].get<std::int64_t>());
  }
  return row;
}

/// Ranks whose times are not told of are none here.
Body progress_of(const json& object) {
  te::Progress progress;
  const json* const ranks = member(object, "ranks");
  const json* const times = member(object, "times");
  if (ranks == nullptr || times == nullptr || !ranks->is_array() || !times->is_array()) return progress;
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> ended;
  for (const json& each : *times) {
    if (const auto row = row_of(each, 3); !row.empty()) ended[row[0]] = {row[1], row[2]};
  }
  for (const json& each : *ranks) {
    const auto row = row_of(each, 4);
    const auto when = row.empty() ? ended.end() : ended.find(row[0]);
    if (when == ended.end() || row[0] < 0 || row[0] >= world_size_max) continue;
    const auto& [first_us, last_us] = when->second;
    progress.ranks.push_back({static_cast<int>(row[0]), row[1], row[2], first_us, last_us, row[3]});
  }
  return progress;
}

te::WorkerExited exited_of(Members& line) {
  te::WorkerExited exited{line.small("local_rank", 0, local_workers_max), line.text("end") == "failed"};
  if (!line.has("first_step_us")) return exited;
  te::Steps steps;
  steps.rank = line.small("rank", 0, world_size_max);
  steps.first = line.number("first_step", -number_max, number_max);
  steps.last = line.number("last_step", -number_max, number_max);
  steps.first_us = line.number("first_step_us", 0, number_max);
  steps.last_us = line.number("last_step_us", 0, number_max);
  steps.waited_us = line.number("waited_us", 0, number_max);
  exited.steps = steps;
  return exited;
}

Body body_of(const std::string& name, const json& object, Members& line) {
  if (name == "job_started") {
    return te::JobStarted{line.text("run_id"), line.small("local_world_size", 1, local_workers_max)};
  }
  if (name == "round_completed") {
    return te::RoundCompleted{line.number("round", 0, round_max), line.small("first_rank", 0, world_size_max),
                              line.small("restart_count", 0, restarts_max)};
  }
  if (name == "worker_started" || name == "worker_kept") {
    return te::WorkerStarted{line.small("local_rank", 0, local_workers_max)};
  }
  if (name == "worker_exited") return exited_of(line);
  if (name == "progress") return progress_of(object);
  if (name == "hang_found") {
    const std::string kind = line.text("kind");
    return kind != "busy" && kind != "debugged" ? Body{te::HangFound{}} : std::nullopt;
  }
  if (name == "waiting") return te::Waiting{};
  if (name == "worker_hung") return te::HangFound{true};
  if (name == "stopping") return te::Stopping{};
  if (name == "attempt_ended") return te::AttemptEnded{};
  if (name == "restarting") return te::RoundFollows{true};
  if (name == "membership_changed") return te::RoundFollows{false};
  if (name == "job_ended") {
    const json* const failures = member(object, "failures");
    return te::JobEnded{failures != nullptr && failures->is_array() && !failures->empty()};
  }
  return std::nullopt;
}

}  // namespace

std::optional<TimeEvent> time_event_of(const LaunchEvent& event, const std::string& host) {
  auto body = std::visit(OfEvent{}, event.body);
  if (!body) return std::nullopt;
  std::optional<TimeEvent> found{std::in_place};
  found->host = host;
  found->monotonic_us = event.at.monotonic_us;
  found->body = *std::move(body);
  return found;
}

Result<std::optional<TimeEvent>> read_time_event(std::string_view line) {
  if (line.size() > event_line_bytes_max) return fail(errc::limit_exceeded, "it is no event: its line is too long");
  const auto parsed = parse_json(line);
  if (!parsed) return parsed.error();
  Members fields{*parsed};
  const std::int64_t schema = fields.number("schema", 1, number_max);
  if (fields.missing().empty() && schema > event_schema) {
    return fail(errc::bad_value, fmt::format("it is of schema {}, and we read up to {}", schema, event_schema));
  }
  std::optional<TimeEvent> event{std::in_place};
  event->host = fields.text("host");
  event->monotonic_us = fields.number("monotonic_us", 0, number_max);
  const std::string name = fields.text("event");
  auto body = body_of(name, *parsed, fields);
  if (!fields.missing().empty()) {
    return fail(errc::bad_value, fmt::format("it is no event: {} is missing, or wrong", fields.missing()));
  }
  if (!body) return std::optional<TimeEvent>{};
  event->body = *std::move(body);
  return event;
}

}  // namespace torchup
