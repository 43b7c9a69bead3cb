// The round machine: agents that come back, and a coordinator that does.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/text/hostlist.hpp"

namespace torchup {

// ---- agents that come back

/// Whether it is no news that somebody was placed in that round. While members gather, the next round has a number and
/// nobody was placed in it.
bool Rendezvous::knows(Round round) const { return phase_ == Phase::gathering ? round < round_ : round <= round_; }

void Rendezvous::restate(Slot slot, const Resume& resume, TimePoint now) {
  const std::optional<Placement>& place = resume.placement ? resume.placement : resume.join.former;
  if (place && !knows(place->round)) {
    const bool was_seated = members_.at(slot).stage == Stage::seated;
    catch_up(resume, *place, now);
    if (was_seated && members_.at(slot).stage == Stage::stopping && resume.stage != Resume::Stage::ready) {
      return;  // told with the others
    }
  }
  const Member& member = members_.at(slot);
  const Peer peer = *member.peer;
  const bool of_this_round = resume.placement && resume.placement->round == round_;
  const bool is_ready = resume.stage == Resume::Stage::ready;
  if (is_ready && !member.in_round() && member.join->unfit != resume.join.unfit) says_anew(slot, resume.join);
  switch (phase_) {
    case Phase::gathering:
      if (is_ready) {
        if (member.stage == Stage::stopping) set_stage(slot, Stage::ready);
      } else if (resume.placement) {
        if (resume.stage != Resume::Stage::stopping) tell_round_is_over(member, *resume.placement);
        set_stage(slot, Stage::stopping);
      }
      return;
    case Phase::hosting:
      if (seats_.front() != slot) return;
      if (resume.store && resume.store->round == round_ && resume.store->port != Port{0}) {
        return said(peer, *resume.store, now);
      }
      tell(member, HostStore{round_});
      return;
    case Phase::running:
    case Phase::doubting:
    case Phase::restoring:
      if (member.stage != Stage::seated) return;
      // Whoever is unfit in spite of its place gives that up: its Join was lost.
      if (is_ready && !resume.join.unfit.empty()) return join_again(slot, peer, resume.join, now);
      if (phase_ != Phase::restoring && is_ready) return tell(member, placed(member));
      if (!of_this_round) return;
      if (resume.stage == Resume::Stage::stopping) return round_is_over(resume.join.host, *resume.placement, now);
      if (resume.stage == Resume::Stage::succeeded) return said(peer, WorkersSucceeded{round_}, now);
      if (resume.stage == Resume::Stage::failed) return said(peer, resume.failed, now);
      return;
    case Phase::ended:
      return;
  }
}

/// The round that this agent was in is over, and it does not know it.
void Rendezvous::tell_round_is_over(const Member& member, const Placement& place) {
  const bool restarted = restarts_.count() > place.restart_count;
  const StopCause cause = restarted ? StopCause::worker_failure : StopCause::membership_change;
  const bool planned = planned_ && cause == StopCause::membership_change && place.round.value() + 1 == round_.value();
  const auto left_out = planned ? first_left_out() : std::nullopt;  // else who was before it may not be back yet
  const bool stands_by = member.drained || (left_out && turn_of(member) >= *left_out);
  tell(member, StopWorkers{place.round, cause, "the round is over", planned, stands_by});
}

/// The snapshot that we come from was older than what was told to the agents: its file could not be written.
void Rendezvous::catch_up(const Resume& resume, const Placement& place, TimePoint now) {
  note(SnapshotOutdated{resume.join.host, place.round});
  restarts_.learn(place.restart_count, now);
  membership_changes_ = std::max(membership_changes_, place.membership_changes);
  const bool knows_its_end = resume.stage == Resume::Stage::stopping || resume.stage == Resume::Stage::ready;
  if (!knows_its_end) count_change();
  changed();
  if (phase_ == Phase::gathering) {
    round_ = Round{place.round.value() + 1};
    return;
  }
  round_ = place.round;
  stop_round(StopCause::membership_change, "the coordinator started again with an old state", now);
}

/// The agent that hosts us has begun anew, and its node is lost to the round that this one is in: nobody waits for the
/// others of that round, who partly know it already.
void Rendezvous::recall(Peer peer, const Resume& resume, TimePoint now) {
  const Placement& place = *resume.placement;
  const bool knows = resume.stage == Resume::Stage::stopping;
  learn(knows ? place : after_stop(place, StopCause::membership_change), now);
  const Slot slot = enroll(peer, resume.join, now);
  was_in(slot, place);
  if (!knows) {
    tell(members_.at(slot), StopWorkers{place.round, StopCause::membership_change, "the hosting agent starts anew"});
  }
  set_stage(slot, Stage::stopping);
}

// ---- a coordinator without memory

/// What a former life of ours had decided, as an agent knows it: nothing of it goes back.
void Rendezvous::learn(const Placement& place, TimePoint now) {
  const Round next{place.round.value() + 1};
  if (next < round_ || (!learning_ && knows(place.round))) return;
  changed();
  learn_counts(place, now);
  next_round_ = std::max(next_round_, next);
  if (phase_ == Phase::gathering) round_ = next_round_;
}

/// The newest round that anybody tells of has the counts: what an older one had cost may have been given back since.
void Rendezvous::learn_counts(const Placement& place, TimePoint now) {
  if (learning_ && place.round < counted_in_) return;
  if (learning_ && place.round > counted_in_) {
    counted_in_ = place.round;
    restarts_ = {};
    membership_changes_ = 0;
  }
  restarts_.learn(place.restart_count, now);
  membership_changes_ = std::max(membership_changes_, place.membership_changes);
}

/// So long workers may run whose agent has lost us: it fences them when its lease is over.
Duration Rendezvous::patience(const std::optional<JobTerms>& terms) const {
  return terms ? std::max(settings_.patience, terms->lease) : settings_.patience;
}

/// Agents of a running round may have no connection yet: a spare that was faster must not take a place of theirs.
/// `join` is of who tells of one, and may be the first that we hear of the job.
void Rendezvous::await_others(const Join& join, TimePoint now) {
  if (!learning_ || hosted_ || patience_until_) return;
  const Duration wait = patience(terms_ ? terms_ : join.terms);
  if (settings_.started && now >= *settings_.started + wait) return;
  patience_until_ = now + wait;
  if (gather_until_) gather_until_ = std::max(*gather_until_, *patience_until_);
  changed();
}

/// Until then nobody's silence says anything; an agent that tells of a round makes us wait for the others of it.
std::optional<TimePoint> Rendezvous::others_dial_until() const {
  if (!learning_ || hosted_ || !settings_.started) return {};
  return *settings_.started + settings_.redial;
}

bool Rendezvous::others_may_come_back(TimePoint now) const {
  if (const auto until = others_dial_until(); until && now < *until) return true;
  const bool all_told = told_round_ && told_count_ >= told_size_;
  return patience_until_ && now < *patience_until_ && !all_told;
}

void Rendezvous::was_in(Slot slot, const Placement& place) {
  members_.at(slot).round = place.round;
  members_.at(slot).seat = {.group_rank = place.group_rank,
                            .first_rank = place.first_rank,
                            .first_role_rank = place.first_role_rank,
                            .role_world_size = place.role_world_size};
  if (!learning_) return;
  if (!told_round_ || place.round > *told_round_) {
    told_round_ = place.round;
    told_size_ = place.group_world_size;
    told_count_ = 0;
  }
  if (place.round == *told_round_) ++told_count_;
}

/// The round that we were about to restore ended before we did, as this agent knows: `place` has the counters of then.
void Rendezvous::round_is_over(const std::string& host, const Placement& place, TimePoint now) {
  const int restarts = restarts_.count();
  learn_counts(place, now);
  next_round_ = std::max(next_round_, Round{place.round.value() + 1});
  const StopCause cause = restarts_.count() > restarts ? StopCause::worker_failure : StopCause::membership_change;
  stop_round(cause, fmt::format("node {} knows that the round is over", host), now);
}

/// A coordinator that knows nothing of a running job learns it from the agents. The newest round that anybody tells of
/// counts, and who knows that it is over is right.
void Rendezvous::restore(Peer peer, const Resume& resume, TimePoint now) {
  const Placement& place = *resume.placement;
  const bool stopping = resume.stage == Resume::Stage::stopping;
  await_others(resume.join, now);
  if (phase_ == Phase::restoring) {
    if (place.round == round_ && !stopping && contradicts(place, resume.join.local_world_size)) {
      return give_up(peer, resume.join.node, place.round, "its place contradicts what other nodes tell of the round");
    }
    if (stopping && place.round >= round_) {
      round_is_over(resume.join.host, place, now);
    } else if (place.round > round_) {
      stop_round(StopCause::membership_change, fmt::format("node {} is in a later round", resume.join.host), now);
    }
  }
  const bool over = stopping || place.round < round_;
  const Slot slot = enroll(peer, resume.join, now);
  was_in(slot, place);
  if (over) {
    if (stopping) learn(place, now);
    if (!stopping) tell_round_is_over(members_.at(slot), place);
    return set_stage(slot, Stage::stopping);
  }
  if (phase_ == Phase::gathering) begin_restoring(place, now);
  take_seat(slot, resume, now);
}

/// Whether the place cannot be in the round that is restored: somebody has it, or others tell of another round.
bool Rendezvous::contradicts(const Placement& place, int local_world_size) const {
  if (place.group_world_size != group_world_size_ || place.world_size != world_size_ ||
      place.master_addr != master_addr_ || place.master_port != master_port_) {
    return true;
  }
  const int first = place.first_rank.value(), last = first + local_world_size - 1;
  if (last >= world_size_) return true;
  return std::any_of(seats_.begin(), seats_.end(), [&](Slot slot) {
    const Member& other = members_.at(slot);
    const int others_first = other.seat.first_rank.value();
    const int others_last = others_first + other.join->local_world_size - 1;
    return other.seat.group_rank == place.group_rank || (first <= others_last && others_first <= last);
  });
}

void Rendezvous::begin_restoring(const Placement& place, TimePoint now) {
  changed();
  phase_ = Phase::restoring;
  round_ = place.round;
  group_world_size_ = place.group_world_size;
  world_size_ = place.world_size;
  learn_counts(place, now);
  master_addr_ = place.master_addr;
  master_port_ = place.master_port;
  store_key_ = place.store_key;
  formed_once_ = true;
  unfinished_ = group_world_size_;
  finished_ = 0;
  failures_.clear();
  failed_.clear();
  may_restart_ = true;
  if (!patience_until_ || patience(terms_) > settings_.patience)
    patience_until_ = std::max(patience_until_.value_or(now), now + patience(terms_));
  gather_until_.reset();
  last_call_until_.reset();
}

void Rendezvous::take_seat(Slot slot, const Resume& resume, TimePoint now) {
  set_stage(slot, Stage::seated);
  seats_.push_back(slot);
  restate(slot, resume, now);
  // A node whose workers have succeeded may have gone since.
  if (phase_ != Phase::restoring || members_.seated() < unfinished_) return;
  note(RoundGoesOn{round_, group_world_size_});
  changed();
  patience_until_.reset();
  learning_ = false;
  phase_ = Phase::running;
  if (unfinished_ == 0) return end({.exit_code = 0, .reason = "all workers exited 0"}, now);
  if (!failures_.empty()) begin_doubt(now);
  if (range_ && phase_ == Phase::running) refit("the range was ordered while the round was awaited", now);
}

// ---- snapshots

JobSnapshot Rendezvous::snapshot(TimePoint now) const {
  const auto left = [&](const std::optional<TimePoint>& at) {
    return at ? std::optional{std::max(*at - now, Duration::zero())} : std::nullopt;
  };
  JobSnapshot saved{.terms = terms_,
                    .facts = facts_,
                    .coordinator_address = coordinator_address_,
                    .phase = phase_ == Phase::doubting ? Phase::running : phase_,
                    .round = round_,
                    .next_round = next_round_,
                    .formed_once = formed_once_,
                    .restart_count = restarts_.count(),
                    .restarts = restarts_.spent(now),
                    .membership_changes = membership_changes_,
                    .group_world_size = group_world_size_,
                    .world_size = world_size_,
                    .master_addr = master_addr_,
                    .master_port = master_port_,
                    .gather_left = left(gather_until_),
                    .last_call_left = left(last_call_until_),
                    .leave_left = left(leave_until_),
                    .patience_left = phase_ == Phase::restoring ? std::nullopt : left(patience_until_),
                    .forget_left = left(forget_at_),
                    .verdict = verdict_,
                    .ended = ended_.save(now),
                    .orders = {range_, {drained_.begin(), drained_.end()}, planned_},
                    .store_key = store_key_};
  members_.save(saved, now);
  return saved;
}

Rendezvous::Rendezvous(RendezvousSettings settings, const JobSnapshot& saved, TimePoint now,
                       const std::optional<Takeover>& takeover)
    : settings_{settings}, members_{{settings.losses_max, settings.loss_window}},
      coordinator_address_{saved.coordinator_address}, terms_{saved.terms}, facts_{saved.facts},
      range_{saved.orders.range}, drained_{saved.orders.drained.begin(), saved.orders.drained.end()},
      phase_{saved.phase}, round_{saved.round}, next_round_{saved.next_round}, formed_once_{saved.formed_once},
      planned_{saved.orders.planned_stop}, restarts_{saved, now}, membership_changes_{saved.membership_changes},
      group_world_size_{saved.group_world_size}, world_size_{saved.world_size}, master_addr_{saved.master_addr},
      master_port_{saved.master_port}, store_key_{saved.store_key}, roster_told_at_{now}, now_{now}, verdict_{saved.verdict} {
  const auto until = [&](const std::optional<Duration>& left) {
    return left ? std::optional{now + *left} : std::nullopt;
  };
  gather_until_ = until(saved.gather_left);
  last_call_until_ = until(saved.last_call_left);
  leave_until_ = until(saved.leave_left);
  patience_until_ = until(saved.patience_left);
  forget_at_ = until(saved.forget_left);
  learning_ = phase_ == Phase::restoring || patience_until_.has_value();
  counted_in_ = phase_ == Phase::restoring ? round_ : Round{next_round_.value() - 1};
  if (phase_ == Phase::hosting) store_until_ = now + settings_.store_limit;
  if (phase_ == Phase::restoring) patience_until_ = now + patience(terms_);
  if (terms_ && !terms_->hostlist.empty()) {
    const auto hosts = expand_hostlist(terms_->hostlist);
    if (hosts) expect(*hosts);
  }
  ended_.restore(saved.ended, now);
  members_.restore(saved, terms_ ? return_by(now) : now, now);
  if (members_.empty()) return;
  for (const auto& [node, slot] : members_.slots()) {
    members_.set_drained(slot, drained_.contains(agent_name(NodeId{node})));
  }
  for (const JobSnapshot::SavedMember& each : saved.members) {
    if (each.stage != Stage::seated && each.stage != Stage::finished) continue;
    ++(each.stage == Stage::seated ? unfinished_ : finished_);
    seats_.push_back(members_.slots().at(each.join->node.value()));
  }
  // A node whose workers have succeeded may have gone since; one that a restored round still lacks has not finished.
  if (phase_ == Phase::running) finished_ = group_world_size_ - unfinished_;
  if (phase_ == Phase::restoring) unfinished_ = group_world_size_ - finished_;
  deserted_ = members_.awaited() > 0;
  takeover_ = takeover;
  last_returned_at_ = now;
  for (const auto& [node, slot] : members_.slots()) {
    if (members_.at(slot).stage != Stage::ready) missing_.insert(slot);
  }
  one_returned_ = missing_.empty();
  if (deserted_) note(JobRestored{round_, members_.awaited()});
}

// ---- after a takeover

std::optional<Round> Rendezvous::complete_round() const {
  const bool runs = phase_ == Phase::running || phase_ == Phase::doubting;
  return runs && std::cmp_equal(seats_.size(), group_world_size_) ? std::optional{round_} : std::nullopt;
}

/// The former coordinator's process has ended, and its agent with it.
void Rendezvous::lose_holder(TimePoint now) {
  if (!takeover_ || !takeover_->proved || !std::exchange(holder_may_live_, false) || takeover_->holder.empty()) return;
  const auto of_holder = [&](Slot slot) {
    const Member& member = members_.at(slot);
    return member.back_by && agent_name(member.join->node) == takeover_->holder;
  };
  std::vector<Slot> lost;
  for (const auto& [node, slot] : members_.slots()) {
    if (of_holder(slot)) lost.push_back(slot);
  }
  for (const Slot slot : lost) lose(slot, place_lost::ended, now);
}

/// Nothing: it may be given up now. Only who has not come back since a takeover is kept.
std::optional<TimePoint> Rendezvous::kept_until(Slot slot, TimePoint now) const {
  if (!takeover_ || !members_.at(slot).back_by || phase_ == Phase::ended) return {};
  const TimePoint limit = last_returned_at_ + std::max(settings_.return_limit, terms_->lease);
  if (now < limit) return limit;
  if (takeover_->proved || one_returned_ || all_missing_joined_anew()) return {};
  return now + terms_->lease;
}

bool Rendezvous::all_missing_joined_anew() const {
  return std::ranges::all_of(missing_, [&](Slot slot) {
    const std::string& host = members_.at(slot).join->host;
    return std::ranges::any_of(members_.slots(), [&](const auto& entry) {
      const Member& other = members_.at(entry.second);
      return entry.second != slot && !other.back_by && other.join->host == host;
    });
  });
}

TimePoint Rendezvous::return_by(TimePoint now) const { return now + std::max(settings_.return_limit, terms_->lease); }

}  // namespace torchup
