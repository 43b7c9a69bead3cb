// The round machine: its step, what happened, and what agents say.
#include "rendezvous/core/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/endpoint.hpp"
#include "rendezvous/core/wording.hpp"

namespace torchup {

Rendezvous::Rendezvous(RendezvousSettings settings) : settings_{settings} {}

std::vector<RendezvousAction> Rendezvous::step(const RendezvousEvent& event, TimePoint now) {
  // We were asleep, not they: signs of life may lie unread before us.
  if (const auto expected = deadline(); terms_ && expected && now > *expected + terms_->lease / 4) grant_leases(now);
  now_ = now;
  std::visit([&](const auto& happened) { on(happened, now); }, event);
  advance(now);
  return std::exchange(actions_, {});
}

std::optional<TimePoint> Rendezvous::deadline() const {
  std::optional<TimePoint> first;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    // What is past has had its effect; whatever still holds it back is an event or a later time.
    if (at && *at > now_ && (!first || *at < *first)) first = at;
  };
  if (!checks_.empty()) consider(checks_.top().at);
  switch (phase_) {
    case Phase::gathering:
      consider(gather_until_);
      consider(last_call_until_);
      consider(leave_until_);
      consider(roster_at_);
      break;
    case Phase::hosting:
      consider(store_until_);
      break;
    case Phase::running:
      consider(admit_at_);
      break;
    case Phase::doubting:
      if (!blocker_) consider(doubt_until_);
      break;
    case Phase::restoring:
      consider(patience_until_);
      break;
    case Phase::ended:
      break;
  }
  consider(forget_at_);
  return first;
}

bool Rendezvous::forgettable(TimePoint now) const { return slot_of_node_.empty() && forget_at_ && now >= *forget_at_; }

// ---- events

void Rendezvous::on(const Connected& event, TimePoint) {
  if (connections_.size() <= event.peer.value()) connections_.resize(event.peer.value() + 1);
  connections_[event.peer.value()] = {.open = true,
                                      .in_process = event.in_process,
                                      .member = {},
                                      .observed = event.observed,
                                      .number = ++connection_count_};
  hosted_ = hosted_ || event.in_process;
  if (event.coordinator.empty() || is_loopback(event.coordinator) || event.coordinator == coordinator_address_) return;
  coordinator_address_ = event.coordinator;
  changed();
}

void Rendezvous::on(const Said& event, TimePoint now) {
  if (Member* member = member_of(event.peer)) member->alive_at = now;
  std::visit([&](const auto& message) { said(event.peer, message, now); }, event.message);
}

void Rendezvous::on(const Alive& event, TimePoint now) {
  Member* member = member_of(event.peer);
  if (!member) return;
  member->alive_at = now;
  if (blocker_ && &members_[*blocker_] == member) blocker_.reset();
}

void Rendezvous::on(const Gone& event, TimePoint now) {
  Connection& connection = connections_.at(event.peer.value());
  const auto slot = std::exchange(connection, {}).member;
  if (!slot) return;
  Member& member = members_[*slot];
  member.peer.reset();
  if (phase_ == Phase::ended) return remove(*slot);
  if (event.end_of_file) return lose(*slot, "has ended", now);
  member.cut_until = now + std::min<Duration>(std::chrono::seconds{1}, terms_->lease / 3);
  checks_.push({*member.cut_until, *slot, member.life});
  note(NodeCutOff{member.join.host, *member.cut_until - now});
}

void Rendezvous::on(const Tick&, TimePoint) {}

void Rendezvous::on(const Resumed& event, TimePoint now) {
  const Resume& resume = event.resume;
  const auto known = slot_of(event.peer, resume.join.node);
  if (outdated(event.peer, known)) return;
  if (phase_ == Phase::ended) {
    if (known) bind(*known, event.peer, now);
    actions_.push_back(Tell{event.peer, End{*verdict_}});
    return;
  }
  if (known) {
    bind(*known, event.peer, now);
    return restate(*known, resume, now);
  }
  if (resume.stage == Resume::Stage::ready) return said(event.peer, resume.join, now);
  if (hosted_ && phase_ == Phase::gathering && !formed_once_ && resume.placement && !misfit(resume.join)) {
    return recall(event.peer, resume, now);
  }

  const bool may_restore = phase_ == Phase::restoring || (phase_ == Phase::gathering && !formed_once_);
  if (!may_restore || !resume.placement || (phase_ == Phase::restoring && resume.placement->round != round_) ||
      misfit(resume.join)) {
    const Round round = resume.placement ? resume.placement->round : round_;
    actions_.push_back(
        Tell{event.peer, StopWorkers{round, StopCause::fenced, "this node was given up while it was silent"}});
    return;
  }
  const Slot slot = enroll(event.peer, resume.join, now);
  restore(slot, resume, now);
}

// ---- what agents say

void Rendezvous::said(Peer peer, const Join& join, TimePoint now) {
  if (phase_ == Phase::ended) {
    actions_.push_back(Tell{peer, End{*verdict_}});
    return;
  }
  const auto known = slot_of(peer, join.node);
  if (outdated(peer, known)) return;
  if (known) {
    const Slot slot = *known;
    if (members_[slot].peer != peer) bind(slot, peer, now);
    const Stage stage = members_[slot].stage;
    if (stage == Stage::stopping) {
      members_[slot].join = join;
      return set_stage(slot, Stage::ready);
    }
    const bool in_round = stage == Stage::seated || stage == Stage::finished;
    if (in_round && phase_ != Phase::hosting) {  // it gave its place up by itself
      ++membership_changes_;
      stop_round(StopCause::membership_change, "node " + join.host + " starts anew", now);
      set_stage(slot, Stage::ready);
    }
    return;
  }
  if (const auto former = connections_.at(peer.value()).member) lose(*former, "starts anew", now);
  replace_silent(join, now);
  if (const auto why = misfit(join)) {
    note(NodeRefused{join.host, *why});
    if (refusals_.size() < refusals_kept_max || refusals_.contains(join.host)) refusals_[join.host] = *why;
    arm_roster();
    actions_.push_back(Refuse{peer, 68, *why});
    return;
  }
  enroll(peer, join, now);
}

void Rendezvous::said(Peer peer, const StoreReady& ready, TimePoint now) {
  const Member* member = member_of(peer);
  if (!member || phase_ != Phase::hosting || ready.round != round_ || &members_[seats_.front()] != member) return;
  master_port_ = ready.port;
  begin_running(now);
}

void Rendezvous::said(Peer peer, const WorkersSucceeded& succeeded, TimePoint now) {
  const Member* member = member_of(peer);
  const bool in_round = phase_ == Phase::running || phase_ == Phase::doubting || phase_ == Phase::restoring;
  if (!member || !in_round || succeeded.round != round_ || member->stage != Stage::seated) return;
  set_stage(*connections_[peer.value()].member, Stage::finished);
  ++finished_;
  --unfinished_;
  if (unfinished_ == 0 && phase_ == Phase::running) end({.exit_code = 0, .reason = "all workers exited 0"}, now);
}

void Rendezvous::said(Peer peer, const WorkersFailed& failed, TimePoint now) {
  const Member* member = member_of(peer);
  const bool in_round = phase_ == Phase::running || phase_ == Phase::doubting || phase_ == Phase::restoring;
  if (!member || !in_round || failed.round != round_ || member->stage != Stage::seated || failed.failures.empty())
    return;
  for (const WorkerFailure& failure : failed.failures) {
    if (failures_.size() < failures_kept_max) failures_.push_back(failure);
  }
  may_restart_ = may_restart_ && failed.may_restart;
  if (phase_ != Phase::running) return;
  phase_ = Phase::doubting;
  blocker_.reset();
  doubt_until_ = now + (group_world_size_ > 1 ? settings_.doubt : Duration::zero());
}

void Rendezvous::said(Peer peer, const Leave& leave, TimePoint now) {
  const Verdict verdict = verdict_of(leave);
  if (phase_ == Phase::ended) {
    if (!leave.kill_now || verdict_->kill_now) return;
    changed();
    verdict_->kill_now = true;
    verdict_->stop_signal = leave.stop_signal;
    for (const auto& [node, slot] : slot_of_node_) tell(members_[slot], End{*verdict_});
    return;
  }
  const Connection& connection = connections_.at(peer.value());
  if (!connection.member) {
    actions_.push_back(Tell{peer, End{verdict}});
    return;
  }
  if (leave.ends_job || connection.in_process) {
    note(JobEndRequested{members_[*connection.member].join.host, leave.reason});
    return end(verdict, now);
  }
  const Slot slot = *connection.member;
  const std::string host = members_[slot].join.host;
  tell(members_[slot], End{verdict});
  losses_of_host_.erase(host);  // a leave is no loss
  leave_until_ = now + settings_.leave_window;
  lose(slot, "leaves: " + leave.reason, now);
  losses_of_host_.erase(host);
  if (formed_once_ && member_count() < terms_->min_nodes && phase_ != Phase::ended) {
    Verdict rest = verdict;
    rest.reason = "node " + host + " left (" + leave.reason + ") and fewer than " + std::to_string(terms_->min_nodes) +
                  " nodes remain";
    end(std::move(rest), now);
  }
}

// ---- actions

void Rendezvous::tell(const Member& member, CoordinatorMessage message) {
  if (member.peer) actions_.push_back(Tell{*member.peer, std::move(message)});
}

void Rendezvous::note(Note note) {
  last_note_ = note;
  actions_.emplace_back(std::move(note));
}

bool decides(const RendezvousAction& action) {
  const auto* tell = std::get_if<Tell>(&action);
  return tell && !std::holds_alternative<Waiting>(tell->message);
}

}  // namespace torchup
