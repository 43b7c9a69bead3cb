// The round machine: agents that come back, and a coordinator that does.
#include "rendezvous/core/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/hostlist.hpp"

namespace torchup {

// ---- agents that come back

void Rendezvous::restate(Slot slot, const Resume& resume, TimePoint now) {
  if (resume.placement && resume.placement->round > round_) {
    const bool was_seated = members_[slot].stage == Stage::seated;
    catch_up(resume, now);
    if (was_seated && members_[slot].stage == Stage::stopping) return;  // told with the others
  }
  const Member& member = members_[slot];
  const Peer peer = *member.peer;
  const bool of_this_round = resume.placement && resume.placement->round == round_;
  switch (phase_) {
    case Phase::gathering:
      if (resume.stage == Resume::Stage::ready) {
        if (member.stage == Stage::stopping) set_stage(slot, Stage::ready);
      } else if (resume.stage != Resume::Stage::stopping && resume.placement) {
        tell(member, StopWorkers{resume.placement->round, StopCause::membership_change, "the round is over"});
        set_stage(slot, Stage::stopping);
      }
      return;
    case Phase::hosting:
      if (seats_.front() != slot) return;
      if (resume.store && resume.store->round == round_) return said(peer, *resume.store, now);
      tell(member, HostStore{round_});
      return;
    case Phase::running:
    case Phase::doubting:
    case Phase::restoring:
      if (member.stage != Stage::seated) return;
      if (phase_ != Phase::restoring && resume.stage == Resume::Stage::ready) return tell(member, placed(member));
      if (!of_this_round) return;
      if (resume.stage == Resume::Stage::succeeded) return said(peer, WorkersSucceeded{round_}, now);
      if (resume.stage == Resume::Stage::failed) return said(peer, resume.failed, now);
      return;
    case Phase::ended:
      return;
  }
}

/// A coordinator that knows nothing of a running job learns it from the agents.
void Rendezvous::restore(Slot slot, const Resume& resume, TimePoint now) {
  const Placement& placement = *resume.placement;
  changed();
  if (resume.stage == Resume::Stage::stopping) return set_stage(slot, Stage::stopping);
  if (phase_ == Phase::gathering) {
    phase_ = Phase::restoring;
    round_ = placement.round;
    group_world_size_ = placement.group_world_size;
    world_size_ = placement.world_size;
    restart_count_ = placement.restart_count;
    restarts_.assign(static_cast<std::size_t>(std::min(restart_count_, terms_->max_restarts)), now);
    membership_changes_ = placement.membership_changes;
    master_addr_ = placement.master_addr;
    master_port_ = placement.master_port;
    formed_once_ = true;
    unfinished_ = group_world_size_;
    finished_ = 0;
    failures_.clear();
    may_restart_ = true;
    patience_until_ = now + settings_.patience;
    gather_until_.reset();
    last_call_until_.reset();
  }
  members_[slot].seat = {.group_rank = placement.group_rank,
                         .first_rank = placement.first_rank,
                         .first_role_rank = placement.first_role_rank,
                         .role_world_size = placement.role_world_size};
  set_stage(slot, Stage::seated);
  seats_.push_back(slot);
  restate(slot, resume, now);
  if (static_cast<int>(seats_.size()) < group_world_size_) return;
  note(RoundGoesOn{round_, group_world_size_});
  changed();
  patience_until_.reset();
  phase_ = Phase::running;
  if (unfinished_ == 0) return end({.exit_code = 0, .reason = "all workers exited 0"}, now);
  if (failures_.empty()) return;
  phase_ = Phase::doubting;
  doubt_until_ = now + settings_.doubt;
}

/// The agent that hosts us has begun anew, and its node is lost to the round that this one is in: nobody waits for the
/// others of that round, who partly know it already.
void Rendezvous::recall(Peer peer, const Resume& resume, TimePoint now) {
  Join join = resume.join;
  join.former = resume.placement;
  const Slot slot = enroll(peer, join, now);
  if (resume.stage != Resume::Stage::stopping) {
    tell(members_[slot],
         StopWorkers{resume.placement->round, StopCause::membership_change, "the hosting agent starts anew"});
  }
  set_stage(slot, Stage::stopping);
}

/// The snapshot that we come from was older than what was told to the agents: its file could not be written.
void Rendezvous::catch_up(const Resume& resume, TimePoint now) {
  note(SnapshotOutdated{resume.join.host, resume.placement->round});
  restart_count_ = std::max(restart_count_, resume.placement->restart_count);
  membership_changes_ = std::max(membership_changes_, resume.placement->membership_changes) + 1;
  if (phase_ == Phase::gathering) {
    round_ = Round{resume.placement->round.value() + 1};
    return changed();
  }
  round_ = resume.placement->round;
  stop_round(StopCause::membership_change, "the coordinator started again with an old state", now);
}

// ---- snapshots

JobSnapshot Rendezvous::snapshot(TimePoint now) const {
  const auto left = [&](const std::optional<TimePoint>& at) {
    return at ? std::optional{std::max(*at - now, Duration::zero())} : std::nullopt;
  };
  const auto ages = [&](const auto& times) {
    std::vector<Duration> list;
    for (const TimePoint at : times) list.push_back(now - at);
    return list;
  };
  JobSnapshot saved{.terms = terms_,
                    .facts = facts_,
                    .coordinator_address = coordinator_address_,
                    .phase = phase_ == Phase::doubting ? Phase::running : phase_,
                    .round = round_,
                    .formed_once = formed_once_,
                    .restart_count = restart_count_,
                    .restart_ages = ages(restarts_),
                    .membership_changes = membership_changes_,
                    .next_seniority = next_seniority_,
                    .group_world_size = group_world_size_,
                    .world_size = world_size_,
                    .master_addr = master_addr_,
                    .master_port = master_port_,
                    .gather_left = left(gather_until_),
                    .last_call_left = left(last_call_until_),
                    .leave_left = left(leave_until_),
                    .forget_left = left(forget_at_),
                    .verdict = verdict_};
  saved.members.reserve(slot_of_node_.size());
  for (const auto& [node, slot] : slot_of_node_) {
    const Member& member = members_[slot];
    auto& copy = saved.members.emplace_back(
        JobSnapshot::Member{member.join, member.stage, member.aside, member.observed, member.seniority, member.seat});
    copy.join.terms = {};
    copy.join.former.reset();
  }
  const auto in_round = [](const JobSnapshot::Member& member) {
    return member.stage == Stage::seated || member.stage == Stage::finished;
  };
  std::sort(saved.members.begin(), saved.members.end(), [&](const auto& a, const auto& b) {
    if (in_round(a) != in_round(b)) return in_round(a);
    return in_round(a) ? a.seat.group_rank < b.seat.group_rank : a.seniority < b.seniority;
  });
  for (const auto& [host, times] : losses_of_host_) saved.losses.push_back({host, ages(times)});
  std::sort(saved.losses.begin(), saved.losses.end(), [](const auto& a, const auto& b) { return a.host < b.host; });
  return saved;
}

Rendezvous::Rendezvous(RendezvousSettings settings, const JobSnapshot& saved, TimePoint now)
    : settings_{settings}, next_seniority_{saved.next_seniority}, coordinator_address_{saved.coordinator_address},
      terms_{saved.terms}, facts_{saved.facts}, phase_{saved.phase}, round_{saved.round},
      formed_once_{saved.formed_once}, restart_count_{saved.restart_count},
      membership_changes_{saved.membership_changes}, group_world_size_{saved.group_world_size},
      world_size_{saved.world_size}, master_addr_{saved.master_addr}, master_port_{saved.master_port},
      gathering_since_{now}, roster_told_at_{now}, now_{now}, verdict_{saved.verdict} {
  const auto until = [&](const std::optional<Duration>& left) {
    return left ? std::optional{now + *left} : std::nullopt;
  };
  gather_until_ = until(saved.gather_left);
  last_call_until_ = until(saved.last_call_left);
  leave_until_ = until(saved.leave_left);
  forget_at_ = until(saved.forget_left);
  if (phase_ == Phase::hosting) store_until_ = now + settings_.store_limit;
  if (phase_ == Phase::restoring) patience_until_ = now + settings_.patience;
  for (const Duration age : saved.restart_ages) restarts_.push_back(now - age);
  for (const auto& [host, ages] : saved.losses) {
    for (const Duration age : ages) losses_of_host_[host].push_back(now - age);
  }
  if (terms_ && !terms_->hostlist.empty()) {
    const auto hosts = expand_hostlist(terms_->hostlist);
    if (hosts) expected_hosts_ = *hosts;
  }

  for (const JobSnapshot::Member& each : saved.members) {
    const auto slot = static_cast<Slot>(members_.size());
    Member& member = members_.emplace_back(Member{.join = each.join,
                                                  .stage = each.stage,
                                                  .aside = each.aside,
                                                  .observed = each.observed,
                                                  .alive_at = now,
                                                  .back_by = return_by(now),
                                                  .seniority = each.seniority,
                                                  .seat = each.seat});
    member.join.terms = *terms_;
    member.check_at = *member.back_by;
    checks_.push({member.check_at, slot, member.life});
    if (each.aside) {
      const auto losses = losses_of_host_.find(each.join.host);
      const bool known = losses != losses_of_host_.end() && !losses->second.empty();
      checks_.push({known ? losses->second.front() + settings_.loss_window : now, slot, member.life});
    }
    slot_of_node_.emplace(each.join.node.value(), slot);
    slots_of_host_.emplace(each.join.host, slot);
    count(member, 1);
    if (each.stage == Stage::seated) ++unfinished_;
    if (each.stage == Stage::finished) ++finished_;
    if (each.stage == Stage::seated || each.stage == Stage::finished) seats_.push_back(slot);
  }
  // A node whose workers have succeeded may have gone since; one that a restored round still lacks has not finished.
  if (phase_ == Phase::running) finished_ = group_world_size_ - unfinished_;
  if (phase_ == Phase::restoring) unfinished_ = group_world_size_ - finished_;
  awaited_ = member_count();
  deserted_ = awaited_ > 0;
  if (awaited_ > 0) note(JobRestored{round_, awaited_});
}

TimePoint Rendezvous::return_by(TimePoint now) const { return now + std::max(settings_.return_limit, terms_->lease); }

}  // namespace torchup
