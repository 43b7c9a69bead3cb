#include "launcher/core/rehearsal/rehearsal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/core/diagnosis/mixed_bits.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

bool takes_round_along(FaultKind kind) { return kind == FaultKind::kill_node || kind == FaultKind::leave_node; }

bool stops_workers(FaultKind kind) {
  return kind == FaultKind::stop_rank || kind == FaultKind::slow_rank || kind == FaultKind::stop_node;
}

}  // namespace

Duration slow_stopped_part(int by_percent) {
  constexpr int whole = 100;
  const int percent = std::clamp(by_percent, 0, script_slow_percent_max);
  return slow_period * percent / (whole + percent);
}

Rehearsal::Rehearsal(RehearsalScript script, std::optional<RehearsalStart> start)
    : script_{std::move(script)}, turns_(script_.statements.size(), 0) {
  if (!start) return;
  zero_ = start->zero;
  own_node_ = start->node.value();
  nodes_ = start->nodes;
  started_again_ = true;
  // What the agent before has seen is done; its workers may well come by the same steps once more.
  newest_step_ = start->step;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const ScriptStatement& statement = script_.statements[i];
    if (statement.when != ScriptStatement::When::step || statement.step > start->step) continue;
    turns_[i] = 1;
    if (!statement.action.back) note_absence(drawn_action({i, 0, start->zero}), start->zero);
  }
}

std::vector<rehearsal::Action> Rehearsal::step(const rehearsal::Event& event, TimePoint now) {
  actions_.clear();
  if (std::exchange(started_again_, false)) pass_over(now);
  std::visit([&](const auto& each) { on(each, now); }, event);
  come_due(now);
  std::erase_if(stops_, [&](const Stop& stop) { return stop.until + node_stop_slack < now; });
  return std::exchange(actions_, {});
}

std::optional<TimePoint> Rehearsal::deadline() const {
  std::optional<TimePoint> first;
  if (over_) return first;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const auto due = next_time(i);
    if (due && (!first || *due < *first)) first = due;
  }
  return first;
}

bool Rehearsal::stops(LocalRank worker, TimePoint now) const {
  return std::ranges::any_of(stops_, [&](const Stop& stop) {
    return stop.here && stop.until >= now && (!stop.worker || *stop.worker == worker);
  });
}

bool Rehearsal::stops_somebody(TimePoint now) const {
  return std::ranges::any_of(stops_, [&](const Stop& stop) { return stop.until >= now; });
}

bool Rehearsal::stops_node(TimePoint now) const {
  return std::ranges::any_of(stops_, [&](const Stop& stop) {
    return stop.here && stop.kind == FaultKind::stop_node && stop.until + node_stop_slack >= now;
  });
}

void Rehearsal::on(const rehearsal::RoundBegins& event, TimePoint now) {
  if (!zero_) {
    zero_ = now;
    own_node_ = event.group_rank.value();
    nodes_ = event.group_world_size;
  }
  round_ = event;
  ++rounds_;
  round_began_ = now;
  for (Open& open : open_) {
    open.workers.clear();
    open.in_round.reset();
  }
  for (const Due& due : std::exchange(held_, {})) come(due, now);
}

void Rehearsal::on(const rehearsal::RoundEnds& event, TimePoint now) {
  if (!round_) return;
  if (event.well) {
    for (const Open& open : open_) {
      RehearsedFault& fault = faults_[open.fault];
      fault.going_on_after = open.in_round.value_or(now - open.at);
      const bool same_workers = open.round == rounds_ && !takes_round_along(open.kind);
      if (same_workers && newest_step_ >= 0) fault.steps_lost = 0;
    }
    open_.clear();
  } else {
    on(rehearsal::TroubleSeen{}, now);
  }
  std::erase_if(stops_, [](const Stop& stop) { return is_of_rank(stop.kind); });  // those workers are no more
  round_.reset();
}

/// A worker that was being started when its fault was due has waited: what lasts, lasts from now on.
void Rehearsal::on(const rehearsal::Injected& event, TimePoint now) {
  if (event.fault >= faults_.size()) return;
  const auto& fault = faults_[event.fault];
  const Duration waited = now - (*zero_ + fault.at);
  for (Stop& stop : stops_) {
    if (stop.fault == event.fault) stop.until += waited;
  }
  for (Open& open : open_) {
    if (open.fault == event.fault && open.ends > open.at) open.ends += waited;
  }
  actions_.emplace_back(rehearsal::Tell{told(fault)});
}

void Rehearsal::on(const rehearsal::NotInjected& event, TimePoint) {
  if (event.fault >= faults_.size()) return;
  RehearsedFault& fault = faults_[event.fault];
  fault.missing = true;
  std::erase_if(open_, [&](const Open& open) { return open.fault == event.fault; });
  std::erase_if(stops_, [&](const Stop& stop) { return stop.fault == event.fault; });
  actions_.emplace_back(rehearsal::Tell{told(fault) + ": " + event.why});
}

void Rehearsal::on(const rehearsal::TroubleSeen&, TimePoint now) {
  for (const Open& open : open_) {
    RehearsedFault& fault = faults_[open.fault];
    if (!fault.noticed_after) fault.noticed_after = now - open.at;
  }
}

void Rehearsal::on(const rehearsal::ProgressSeen& event, TimePoint now) {
  if (!round_) return;
  for (Open& open : open_) {
    for (const rehearsal::WorkerProgressSeen& seen : event.workers) {
      if (seen.local_rank.value() < 0 || seen.local_rank.value() >= round_->local_world_size) continue;
      see(open, seen, now);
    }
    const auto going_on = std::ranges::count_if(open.workers, [](const auto& each) { return each.second.again; });
    if (std::cmp_less(going_on, round_->local_world_size)) continue;
    const Duration after = std::max(open.newest - open.at, Duration{0});
    if (open.round == rounds_ && takes_round_along(open.kind)) {
      if (!open.in_round) open.in_round = after;
      continue;
    }
    RehearsedFault& fault = faults_[open.fault];
    fault.going_on_after = after;
    if (open.round == rounds_) {
      if (newest_step_ >= 0) fault.steps_lost = 0;
    } else if (open.step_before >= 0) {
      const auto& workers = open.workers;
      const std::int64_t first = std::ranges::min_element(workers, {}, [](const auto& each) {
                                   return each.second.first_step;
                                 })->second.first_step;
      if (first >= 0) fault.steps_lost = std::max<std::int64_t>(open.step_before - first + 1, 0);
    }
  }
  std::erase_if(open_, [&](const Open& open) { return faults_[open.fault].going_on_after.has_value(); });
  for (const rehearsal::WorkerProgressSeen& seen : event.workers) {
    newest_step_ = std::max(newest_step_, std::min(seen.step.value_or(-1), script_step_max));
  }
  // What a round before has reached is what a later one may have lost.
  for (Open& open : open_) {
    if (open.round == rounds_) open.step_before = std::max(open.step_before, newest_step_);
  }
  come_due_by_step(now);
}

void Rehearsal::on(const rehearsal::JobEnds&, TimePoint) { over_ = true; }

void Rehearsal::on(const rehearsal::Wake&, TimePoint) {}

void Rehearsal::see(Open& open, const rehearsal::WorkerProgressSeen& seen, TimePoint now) const {
  const bool later_round = open.round != rounds_;
  Progress& progress = open.workers[seen.local_rank.value()];
  const TimePoint when = std::min(TimePoint{std::chrono::nanoseconds{seen.progress_ns}}, now);
  if (progress.again || when <= (later_round ? std::max(open.at, round_began_) : open.ends)) return;
  const bool lasted = open.ends > open.at;
  if (later_round || lasted || (progress.marked && progress.counted != seen.progress)) {
    progress.again = true;
    progress.first_step = std::clamp<std::int64_t>(seen.step.value_or(-1), -1, script_step_max);
    // A process that has counted from its start on says nothing of the step that its program went on from.
    const bool counted = std::cmp_equal(seen.progress, progress.first_step);
    if (later_round && counted && progress.first_step <= open.step_before) progress.first_step = -1;
    open.newest = std::max(open.newest, when);
  } else if (!progress.marked) {
    progress.marked = true;
    progress.counted = seen.progress;
  }
}

/// When a statement that goes by time comes next; nothing when never, or when it goes by steps.
std::optional<TimePoint> Rehearsal::next_time(std::size_t index) const {
  const ScriptStatement& statement = script_.statements[index];
  const int turn = turns_[index];
  if (!zero_ || statement.when == ScriptStatement::When::step) return std::nullopt;
  if (statement.when == ScriptStatement::When::time)
    return turn == 0 ? std::optional{*zero_ + statement.time} : std::nullopt;
  if (turn >= statement.times.value_or(static_cast<int>(rehearsal_faults_max))) return std::nullopt;
  return *zero_ + statement.time * (turn + 1);
}

/// The first that is due at `now`, in the order of time, then of the script.
std::optional<Rehearsal::Due> Rehearsal::next_due(TimePoint now) {
  std::optional<Due> first;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const auto when = next_time(i);
    if (when && *when <= now && (!first || *when < first->when)) first = Due{i, turns_[i], *when};
  }
  if (first) ++turns_[first->statement];
  return first;
}

void Rehearsal::come_due(TimePoint now) {
  if (over_) return;
  while (const auto due = next_due(now)) come(*due, now);
}

/// Others have done without this node what came while it was away; of that it only has to know who is away.
void Rehearsal::pass_over(TimePoint now) {
  while (const auto due = next_due(now)) note_absence(drawn_action(*due), due->when);
}

void Rehearsal::come_due_by_step(TimePoint now) {
  if (over_) return;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const ScriptStatement& statement = script_.statements[i];
    if (statement.when != ScriptStatement::When::step || turns_[i] > 0 || newest_step_ < statement.step) continue;
    ++turns_[i];
    come({i, 0, now}, now);
  }
}

void Rehearsal::come(const Due& due, TimePoint now) {
  if (faults_.size() + held_.size() >= rehearsal_faults_max) return;
  const ScriptAction& written = script_.statements[due.statement].action;
  if (is_of_rank(written.kind) && !round_) {
    held_.push_back(due);
    return;
  }
  strike(due, now);
}

/// With its target, unless there is none to draw. A rank is drawn in a round alone.
ScriptAction Rehearsal::drawn_action(const Due& due) const {
  ScriptAction action = script_.statements[due.statement].action;
  if (action.target) return action;
  const std::uint64_t place = mixed_bits(script_.seed) ^ (std::uint64_t{due.statement} << 32);
  const std::uint64_t chance = mixed_bits(place ^ static_cast<std::uint64_t>(due.turn));
  if (is_of_rank(action.kind)) {
    if (round_) action.target = static_cast<int>(chance % static_cast<std::uint64_t>(std::max(round_->world_size, 1)));
    return action;
  }
  std::vector<int> nodes;
  for (int node = 0; node < nodes_; ++node) {
    if (!is_away(node, due.when)) nodes.push_back(node);
  }
  if (!nodes.empty()) action.target = nodes[chance % nodes.size()];
  return action;
}

bool Rehearsal::is_away(int node, TimePoint now) const {
  const auto found = away_.find(node);
  return found != away_.end() && (!found->second || now < *found->second);
}

void Rehearsal::note_absence(const ScriptAction& action, TimePoint when) {
  if (!takes_round_along(action.kind)) return;
  if (!action.target || *action.target >= nodes_) return;
  away_[*action.target] = action.back ? std::optional{when + *action.back} : std::nullopt;
}

/// Why the action has no target; empty when it has one.
std::string Rehearsal::why_not_there(const ScriptAction& action, TimePoint when) const {
  if (!action.target) return "no node is left";
  const int target = *action.target;
  if (is_of_rank(action.kind)) {
    return target < round_->world_size ? "" : fmt::format("no rank {} among {}", target, round_->world_size);
  }
  if (target >= nodes_) return fmt::format("no node {} among {}", target, nodes_);
  return is_away(target, when) ? fmt::format("node {} is away", target) : "";
}

std::string Rehearsal::told(const RehearsedFault& fault) const {
  return fmt::format("{} at {}", fault.text, seconds(fault.at));
}

void Rehearsal::strike(const Due& due, TimePoint now) {
  const ScriptAction action = drawn_action(due);
  const bool drawn = !script_.statements[due.statement].action.target;
  RehearsedFault& fault = faults_.emplace_back();
  fault.text = to_text(action) + (drawn && action.target ? " (random)" : "");
  fault.at = now - *zero_;
  fault.statement = due.statement;
  fault.turn = due.turn;
  if (const std::string why = why_not_there(action, due.when); !why.empty()) {
    fault.missing = true;
    actions_.emplace_back(rehearsal::Tell{told(fault) + ": " + why});
    return;
  }
  // A slow rank gets on all the while.
  const Duration lasts = action.kind == FaultKind::slow_rank ? Duration{0} : action.lasts;
  open_.push_back({.fault = faults_.size() - 1,
                   .at = now,
                   .round = rounds_,
                   .step_before = newest_step_,
                   .kind = action.kind,
                   .ends = now + lasts});
  note_absence(action, due.when);
  const auto worker = own_target(action);
  if (stops_workers(action.kind)) {
    Stop& stop = stops_.emplace_back();
    stop.fault = faults_.size() - 1;
    stop.kind = action.kind;
    if (is_of_rank(action.kind)) stop.worker = worker;
    stop.here = worker.has_value();
    stop.until = now + action.lasts;
  }
  if (worker) inject(action, *worker);
}

/// The worker of this node that is meant, any where the node is; nothing: this is another node's.
std::optional<LocalRank> Rehearsal::own_target(const ScriptAction& action) const {
  if (!is_of_rank(action.kind)) return *action.target == own_node_ ? std::optional{LocalRank{0}} : std::nullopt;
  const int local_rank = *action.target - round_->first_rank.value();
  if (local_rank < 0 || local_rank >= round_->local_world_size) return std::nullopt;
  return LocalRank{local_rank};
}

void Rehearsal::inject(const ScriptAction& action, LocalRank local_rank) {
  rehearsal::Inject inject{faults_.size() - 1, action, local_rank, {}};
  if (!is_of_rank(action.kind)) inject.restart = {*zero_, GroupRank{own_node_}, nodes_, newest_step_};
  actions_.emplace_back(std::move(inject));
}

}  // namespace torchup
