#include "launcher/core/record/time_fold.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace torchup {
namespace {

namespace te = time_event;

/// A node's life beyond that is a clock's that says what it likes.
constexpr std::int64_t life_max_us = std::chrono::duration_cast<std::chrono::microseconds>(duration_max).count();

/// Of the steps a…z of an attempt the part that was done again from step `again` on, 0 to 1.
double part_done_again(const te::Steps& steps, std::int64_t again) {
  const auto first = static_cast<double>(steps.first);
  const auto last = static_cast<double>(steps.last);
  if (last <= first) return 0;
  const double kept = std::max(static_cast<double>(again) - 1, first);
  return std::clamp((last - kept) / (last - first), 0.0, 1.0);
}

std::int64_t steps_done_again(const te::Steps& steps, std::int64_t again) {
  const double all = std::clamp(static_cast<double>(steps.last) - static_cast<double>(steps.first), 0.0, 1e15);
  return static_cast<std::int64_t>(all * part_done_again(steps, again) + 0.5);
}

std::int64_t part_of(std::int64_t time_us, double part) {
  return std::clamp(static_cast<std::int64_t>(static_cast<double>(time_us) * part), std::int64_t{0}, time_us);
}

/// Of a host, which has its ranks in one life after the other.
void add_life(LedgerCounts& counts, const LedgerCounts& of_life) {
  counts.ranks = std::max(counts.ranks, of_life.ranks);
  counts.lasted_us = std::min(counts.lasted_us + of_life.lasted_us, life_max_us);
  counts.restarts = counts.restarts.value_or(0) + *of_life.restarts;
  counts.changes = counts.changes.value_or(0) + *of_life.changes;
}

/// The job's counters and clock, of which another host tells as well.
void take_in(LedgerCounts& counts, const LedgerCounts& of_host) {
  counts.lasted_us = std::max(counts.lasted_us, of_host.lasted_us);
  counts.restarts = std::max(counts.restarts, of_host.restarts);
  counts.changes = std::max(counts.changes, of_host.changes);
}

}  // namespace

/// What an event does to its node.
struct TimeFold::Apply {
  Node& node;
  std::int64_t at;
  std::size_t kept;

  [[nodiscard]] Attempt* running() const {
    return node.attempts.empty() || node.attempts.back().ended ? nullptr : &node.attempts.back();
  }
  [[nodiscard]] Attempt* over() const {
    return node.attempts.empty() || !node.attempts.back().ended ? nullptr : &node.attempts.back();
  }
  [[nodiscard]] Rank* rank(int local_rank) const {
    Attempt* const attempt = running();
    return attempt && local_rank >= 0 && local_rank < node.ranks ? &attempt->ranks[local_rank] : nullptr;
  }

  void operator()(const te::JobStarted&) const {}
  void operator()(const te::Waiting&) const {
    if (Attempt* const last = over(); last && !last->waits) last->waits = at;
  }
  void operator()(const te::RoundCompleted& event) const {
    if (Attempt* const cut = running()) cut->ended = at;
    node.attempts.push_back({});
    node.attempts.back().round = event;
    RoundKey& newest = node.attempts.back().key;
    newest = {0, event.round};
    if (const auto& before = node.newest_round)
      newest.first = event.round > before->second ? before->first : before->first + 1;
    node.newest_round = newest;
    node.attempts.back().completed = at;
    if (!node.first_round) node.first_round = at;
    if (node.attempts.size() > kept) settle(node);
  }
  void operator()(const te::WorkerStarted& event) const {
    if (Rank* const started = rank(event.local_rank)) started->started = at;
  }
  void operator()(const te::WorkerExited& event) const {
    Rank* const gone = rank(event.local_rank);
    if (gone == nullptr) return;
    gone->exited = at;
    if (event.steps) gone->steps = event.steps;
    if (event.failed) running()->failed = true;
  }
  void operator()(const te::Progress& event) const {
    Attempt* const attempt = running();
    if (attempt == nullptr) return;
    for (const te::Steps& steps : event.ranks) {
      const auto of = attempt->ranks.find(steps.rank - attempt->round.first_rank);
      if (of != attempt->ranks.end() && !of->second.exited) of->second.steps = steps;
    }
  }
  void operator()(const te::HangFound& event) const {
    Attempt* const attempt = running();
    if (!attempt || (attempt->hung && attempt->hung_worker >= event.of_worker)) return;
    attempt->hung = at;
    attempt->hung_worker = event.of_worker;
  }
  void operator()(const te::Stopping&) const {
    if (Attempt* const attempt = running(); attempt && !attempt->stopping) attempt->stopping = at;
  }
  void operator()(const te::AttemptEnded&) const {
    if (Attempt* const attempt = running()) attempt->ended = at;
  }
  void operator()(const te::RoundFollows& event) const {
    if (!node.attempts.empty()) node.attempts.back().follows = event;
  }
  void operator()(const te::JobEnded& event) const {
    if (Attempt* const cut = running()) cut->ended = at;
    node.ended = at;
    node.failed = event.failed;
  }
};

void TimeFold::add(const TimeEvent& event) {
  const auto is_of_host = [&](const Node& node) { return node.host == event.host; };
  const auto newest = std::find_if(nodes_.rbegin(), nodes_.rend(), is_of_host);
  if (const auto* started = std::get_if<te::JobStarted>(&event.body)) {
    std::optional<RoundKey> newest_round;
    if (newest != nodes_.rend() && newest->run_id == started->run_id && !newest->ended)
      newest_round = newest->newest_round;
    if (newest != nodes_.rend() && newest->ended) std::erase_if(nodes_, is_of_host);
    run_id_ = started->run_id;
    const std::int64_t ranks = std::clamp(started->local_world_size, 0, local_workers_max);
    const std::int64_t at =
        std::clamp(event.monotonic_us, std::int64_t{0}, std::numeric_limits<std::int64_t>::max() - life_max_us);
    nodes_.push_back({.host = event.host,
                      .run_id = run_id_,
                      .newest_round = newest_round,
                      .ranks = ranks,
                      .started = at,
                      .seen = at,
                      .ended = {}});
    return;
  }
  if (newest == nodes_.rend() || newest->ended) return;
  newest->seen = std::clamp(event.monotonic_us, newest->seen, newest->started + life_max_us);
  std::visit(Apply{*newest, newest->seen, kept_}, event.body);
}

std::int64_t TimeFold::end_of(const Node& node, std::optional<std::int64_t> now_us) {
  if (node.ended) return *node.ended;
  return std::clamp(now_us.value_or(node.seen), node.seen, node.started + life_max_us);
}

Spent TimeFold::cause_of(const Node& node, std::size_t index) {
  const Attempt& attempt = node.attempts[index];
  if (index + 1 < node.attempts.size()) {
    const bool restart = node.attempts[index + 1].round.restart_count > attempt.round.restart_count;
    return restart ? Spent::failure : Spent::change;
  }
  if (node.ended) return node.failed ? Spent::failure : Spent::shutdown;
  if (attempt.follows) return attempt.follows->after_failure ? Spent::failure : Spent::change;
  return attempt.failed ? Spent::failure : Spent::shutdown;
}

void TimeFold::charge_rank(const Rank& rank, const Span& span, TimeLedger& ledger, Round& round) {
  const auto within = [](std::int64_t time, std::int64_t from, std::int64_t to) { return std::clamp(time, from, to); };
  std::int64_t first = within(rank.started.value_or(span.end), span.begin, span.end);  // R
  std::int64_t last = span.end;                                                        // Q
  if (rank.steps) {
    first = within(rank.steps->first_us, span.begin, span.end);
    const bool goes_on = span.runs && !rank.exited && !span.attempt.stopping;
    if (!goes_on) last = within(rank.steps->last_us, first, span.end);
  } else {
    for (const auto& stop : {rank.exited, span.attempt.stopping}) last = std::min(last, stop.value_or(last));
    last = within(last, first, span.end);
  }
  const std::int64_t noticed = within(span.attempt.hung.value_or(last), last, span.end);  // H
  const std::int64_t running = last - first;
  ledger.add(span.before, first - span.begin);
  ledger.add(Spent::useful, running);
  ledger.add(Spent::hang, noticed - last);
  ledger.add(span.cause, span.end - noticed);
  round.running += static_cast<double>(running);
  round.hung = round.hung || noticed > last;
  if (!rank.steps) {
    if (rank.started) ++round.unreported;
    return;
  }
  const auto waited = static_cast<double>(std::max(rank.steps->waited_us, std::int64_t{0}));
  round.waited_least = round.reported == 0 ? waited : std::min(round.waited_least, waited);
  round.waited += waited;
  ++round.reported;
  if (!span.done_again) return;
  const std::int64_t redone = part_of(running, part_done_again(*rank.steps, *span.done_again));
  ledger.move(Spent::useful, Spent::redone, redone);
  round.redone += static_cast<double>(redone);
  round.redone_steps = std::max(round.redone_steps, steps_done_again(*rank.steps, *span.done_again));
}

/// One attempt of a node, to the beginning of the next one or, of the last, to `end`.
void TimeFold::charge(const Node& node, std::size_t index, std::int64_t end, std::optional<std::int64_t> done_again,
                      TimeLedger& ledger, Round& round) {
  const Attempt& attempt = node.attempts[index];
  const bool is_last = index + 1 == node.attempts.size();
  const std::int64_t next = is_last ? end : node.attempts[index + 1].completed;
  Span span{.attempt = attempt, .begin = attempt.completed, .end = attempt.ended.value_or(next)};
  span.before = index == 0 ? node.cause_before : cause_of(node, index - 1);
  span.cause = cause_of(node, index);
  span.runs = !attempt.ended;
  span.done_again = done_again;
  for (const auto& [local_rank, rank] : attempt.ranks) charge_rank(rank, span, ledger, round);
  const std::int64_t absent = node.ranks - static_cast<std::int64_t>(attempt.ranks.size());
  ledger.add(span.before, absent * (span.end - span.begin));
  const bool is_over = is_last && node.ended;
  const std::int64_t waits = is_over ? next : std::clamp(attempt.waits.value_or(next), span.end, next);
  ledger.add(span.cause, node.ranks * (waits - span.end));
  ledger.add(Spent::waiting, node.ranks * (next - waits));
}

/// What ranks waited for others, and what is counted.
void TimeFold::share_out(const Round& round, Totals& totals) {
  const double excess = std::min(round.waited - round.reported * round.waited_least, round.running);
  if (round.running > 0) {
    const double not_redone = (round.running - round.redone) / round.running;
    totals.ledger.move(Spent::useful, Spent::straggler, static_cast<std::int64_t>(std::min(excess * not_redone, 9e18)));
  }
  *totals.counts.redone_steps += round.redone_steps;
  *totals.counts.hangs += round.hung ? 1 : 0;
  if (round.reported == 0 && round.unreported == 0) return;
  const LedgerBasis basis = round.unreported == 0 ? LedgerBasis::steps
                            : round.reported == 0 ? LedgerBasis::processes
                                                  : LedgerBasis::mixed;
  totals.basis = totals.basis ? basis_of_both(*totals.basis, basis) : basis;
}

/// The oldest attempt, for which all steps that are known of later ones count.
void TimeFold::settle(Node& node) {
  std::optional<std::int64_t> done_again;
  for (std::size_t i = 1; i < node.attempts.size(); ++i) {
    for (const auto& [local_rank, rank] : node.attempts[i].ranks) {
      if (rank.steps) done_again = std::min(done_again.value_or(rank.steps->first), rank.steps->first);
    }
  }
  Round round;
  charge(node, 0, node.seen, done_again, node.settled.ledger, round);
  share_out(round, node.settled);
  const Spent cause = cause_of(node, 0);
  ++*(cause == Spent::failure ? node.settled.counts.restarts : node.settled.counts.changes);
  node.cause_before = cause;
  node.attempts.pop_front();
}

TimeFold::Totals TimeFold::totals(std::optional<std::int64_t> now_us) const {
  std::map<RoundKey, std::int64_t> first_steps;  // of a round, or of any later one
  Rounds rounds;
  for (const Node& node : nodes_) {
    if (node.run_id != run_id_) continue;
    for (const Attempt& attempt : node.attempts) {
      rounds[attempt.key];
      for (const auto& [local_rank, rank] : attempt.ranks) {
        if (!rank.steps) continue;
        const auto [least, is_new] = first_steps.try_emplace(attempt.key, rank.steps->first);
        least->second = std::min(least->second, rank.steps->first);
      }
    }
  }
  for (auto later = first_steps.rbegin(), at = later; at != first_steps.rend(); later = at++) {
    at->second = std::min(at->second, later->second);
  }
  Totals all;
  std::map<std::string, LedgerCounts> of_hosts;
  for (const Node& node : nodes_) {
    if (node.run_id != run_id_) continue;
    const std::int64_t end = end_of(node, now_us);
    LedgerCounts counts = node.settled.counts;
    all.ledger += node.settled.ledger;
    *all.counts.redone_steps += *counts.redone_steps;
    *all.counts.hangs += *counts.hangs;
    if (node.settled.basis) all.basis = all.basis ? basis_of_both(*all.basis, *node.settled.basis) : node.settled.basis;
    all.ledger.add(Spent::waiting, node.ranks * (node.first_round.value_or(end) - node.started));
    for (std::size_t i = 0; i < node.attempts.size(); ++i) {
      const auto later = first_steps.upper_bound(node.attempts[i].key);
      const auto done_again = later == first_steps.end() ? std::nullopt : std::optional{later->second};
      charge(node, i, end, done_again, all.ledger, rounds[node.attempts[i].key]);
      if (i + 1 < node.attempts.size()) ++*(cause_of(node, i) == Spent::failure ? counts.restarts : counts.changes);
    }
    counts.ranks = node.ranks;
    counts.lasted_us = end - node.started;
    add_life(of_hosts[node.host], counts);
  }
  for (const auto& [host, counts] : of_hosts) {
    take_in(all.counts, counts);
    *all.counts.ranks += *counts.ranks;
  }
  for (const auto& [number, round] : rounds) share_out(round, all);
  all.ledger.basis = all.basis.value_or(LedgerBasis::processes);
  return all;
}

TimeLedger TimeFold::ledger(std::optional<std::int64_t> now_us) const { return totals(now_us).ledger; }

LedgerCounts TimeFold::counts(std::optional<std::int64_t> now_us) const { return totals(now_us).counts; }

}  // namespace torchup
