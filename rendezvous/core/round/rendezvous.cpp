// The round machine: its step, what happened, and what agents say.
#include "rendezvous/core/round/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace torchup {
namespace {

/// Those of ranks that have not failed yet.
void add_failures(std::vector<WorkerFailure>& all, const std::vector<WorkerFailure>& more) {
  for (const WorkerFailure& failure : more) {
    const auto told = [&](const WorkerFailure& other) { return other.rank == failure.rank; };  // restated
    if (std::ranges::any_of(all, told)) continue;
    const bool is_cause = !failure.consequence && std::ranges::all_of(all, &WorkerFailure::consequence);
    if (is_cause && all.size() == failures_kept_max) all.pop_back();  // it matters more than the last one
    if (all.size() < failures_kept_max) all.push_back(failure);
  }
}

}  // namespace

Rendezvous::Rendezvous(RendezvousSettings settings)
    : settings_{settings}, members_{{settings.losses_max, settings.loss_window}} {}

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
  consider(members_.deadline());
  switch (phase_) {
    case Phase::gathering:
      consider(gather_until_);
      consider(last_call_until_);
      consider(leave_until_);
      consider(patience_until_);
      consider(others_dial_until());
      consider(roster_at_);
      break;
    case Phase::hosting:
      consider(store_until_);
      break;
    case Phase::running:
      consider(admit_at_);
      break;
    case Phase::doubting:
      if (!blocker_) consider(waits_for_cause_ ? cause_until_ : doubt_until_);
      break;
    case Phase::restoring:
      consider(patience_until_);
      break;
    case Phase::ended:
      consider(late_until_);
      break;
  }
  consider(forget_at_);
  return first;
}

std::optional<TimePoint> Rendezvous::forget_at() const {
  if (!members_.empty()) return {};
  return forget_at_.value_or(TimePoint::min());  // nobody has ever joined
}

bool Rendezvous::forgettable(TimePoint now) const {
  const auto at = forget_at();
  return at && now >= *at;
}

std::optional<int> Rendezvous::still_leaving() const {
  return ended_.empty() ? std::nullopt : std::optional{members_.leaving()};
}

// ---- events

void Rendezvous::on(const Connected& event, TimePoint) {
  members_.open(event.peer, event.observed, event.coordinator, event.in_process);
  hosted_ = hosted_ || event.in_process;
}

void Rendezvous::on(const Said& event, TimePoint now) {
  Member* member = members_.of(event.peer);
  on(Alive{event.peer}, now);
  if (const auto why = implausible(event.message)) {
    const auto* join = std::get_if<Join>(&event.message);
    return refuse(event.peer, join ? join->host : member ? member->join->host : "that has not joined", *why);
  }
  std::visit([&](const auto& message) { said(event.peer, message, now); }, event.message);
}

void Rendezvous::on(const Alive& event, TimePoint now) {
  Member* member = members_.of(event.peer);
  if (!member) return;
  member->alive_at = now;
  if (blocker_ && &members_.at(*blocker_) == member) blocker_.reset();
}

void Rendezvous::on(const Gone& event, TimePoint now) {
  const auto parting = members_.close(event.peer, event.end_of_file, now);
  if (!parting) return;
  if (phase_ == Phase::ended) return remove(parting->slot);
  if (parting->has_ended) members_.at(parting->slot).alive_at = now;  // until now its process had not ended
  if (parting->has_ended) return lose(parting->slot, place_lost::ended, now);
  note(NodeCutOff{members_.at(parting->slot).join->host, parting->left});
}

void Rendezvous::on(const Foretold& event, TimePoint now) {
  foretold_ = event.agents;
  others_come_ = event.others_come;
  if (!event.verdict) return;
  foregone_ = event.verdict;
  if (terms_ && phase_ != Phase::ended) end(*event.verdict, now);
}

void Rendezvous::on(const Tick&, TimePoint) {}

void Rendezvous::on(const Resumed& event, TimePoint now) {
  const Resume& resume = event.resume;
  if (const auto why = implausible(resume)) return refuse(event.peer, resume.join.host, *why);
  const Standing standing = comes_back(members_, past(), event.peer, resume, now);
  if (standing.member) bind(*standing.member, event.peer, now);
  switch (standing.meaning) {
    case Standing::Meaning::nothing:
      return;
    case Standing::Meaning::refusal:
      return refuse(event.peer, resume.join.host, standing.why);
    case Standing::Meaning::verdict:
      actions_.push_back(Tell{event.peer, End{*standing.verdict}});
      return;
    case Standing::Meaning::member:
      return restate(*standing.member, resume, now);
    case Standing::Meaning::newcomer:
      break;
  }
  if (const auto former = members_.displaced(event.peer, {})) supersede(*former, now);
  if (resume.stage == Resume::Stage::ready) {
    // Who was lost here may be told of nothing that we have not told: there need be no coordinator before us.
    if (!lost_agents_.contains(resume.join.node)) await_others(resume.join, now);
    return newcomer(event.peer, resume.join, now);
  }
  // Not by its terms: people may have let the job have more nodes, which is forgotten here.
  const bool fits =
      resume.placement && resume.placement->group_world_size <= settings_.agents_max && !misfit(resume.join, {});
  if (fits && hosted_ && phase_ == Phase::gathering && !formed_once_) return recall(event.peer, resume, now);
  const bool may_restore = learning_ && (phase_ == Phase::gathering || phase_ == Phase::restoring);
  if (fits && may_restore) return restore(event.peer, resume, now);
  const Round round = resume.placement ? resume.placement->round : round_;
  give_up(event.peer, resume.join.node, round, given_up_while_silent);
}

// ---- what agents say

void Rendezvous::said(Peer peer, const Join& join, TimePoint now) {
  if (auto verdict = missed(peer, join)) return actions_.push_back(Tell{peer, End{*std::move(verdict)}});
  const Standing standing = joins(members_, past(), peer, join, now);
  switch (standing.meaning) {
    case Standing::Meaning::nothing:
      return;
    case Standing::Meaning::refusal:
      return refuse(peer, join.host, standing.why);
    case Standing::Meaning::verdict:
      actions_.push_back(Tell{peer, End{*standing.verdict}});
      return;
    case Standing::Meaning::member:
      return join_again(*standing.member, peer, join, now);
    case Standing::Meaning::newcomer:
      if (phase_ == Phase::ended) begin_anew();
      return newcomer(peer, join, now);
  }
}

void Rendezvous::said(Peer peer, const StoreReady& ready, TimePoint) {
  const Member* member = members_.of(peer);
  if (!member || phase_ != Phase::hosting || ready.round != round_ || &members_.at(seats_.front()) != member) return;
  master_port_ = ready.port;
  store_key_ = ready.key;
  begin_running();
}

void Rendezvous::said(Peer peer, const WorkersSucceeded& succeeded, TimePoint now) {
  const Member* member = members_.of(peer);
  const bool in_round = phase_ == Phase::running || phase_ == Phase::doubting || phase_ == Phase::restoring;
  if (!member || !in_round || succeeded.round != round_ || member->stage != Stage::seated) return;
  set_stage(*members_.connection(peer).member, Stage::finished);
  ++finished_;
  --unfinished_;
  if (unfinished_ == 0 && phase_ == Phase::running) end({.exit_code = 0, .reason = "all workers exited 0"}, now);
}

void Rendezvous::said(Peer peer, const WorkersFailed& failed, TimePoint now) {
  const Member* member = members_.of(peer);
  const bool in_round = phase_ == Phase::running || phase_ == Phase::doubting || phase_ == Phase::restoring;
  if (!member || !in_round || failed.round != round_ || member->stage != Stage::seated || failed.failures.empty())
    return;
  add_failures(failures_, failed.failures);
  failed_.insert(*members_.connection(peer).member);
  may_restart_ = may_restart_ && failed.may_restart;
  if (phase_ == Phase::running) begin_doubt(now);
}

void Rendezvous::said(Peer peer, const Leave& leave, TimePoint now) {
  const Membership::Connection& connection = members_.connection(peer);
  Verdict* past = phase_ == Phase::ended ? &*verdict_ : nullptr;
  if (connection.ended_job) {
    EndedJobs::EndedJob* job = ended_.find(*connection.ended_job);
    past = job ? &job->verdict : nullptr;
  }
  if (past) {
    if (!leave.kill_now || past->kill_now) return;
    past->stop_signal = leave.stop_signal;
    return end_sooner(*past, connection.ended_job);
  }
  const bool stops = connection.member && members_.at(*connection.member).stage == Stage::stopping;
  if (stops && is_void(leave, {.save = planned_})) return;
  Verdict verdict = verdict_of(leave);
  if (!connection.member) {
    actions_.push_back(Tell{peer, End{verdict}});
    return;
  }
  const Slot slot = *connection.member;
  const Member& member = members_.at(slot);
  const std::string host = member.join->host;
  // Of a node without which there was to be no job: it does not know that there is one.
  const bool too_late = has_begun() && member.is_missed() && leave.exit_code == member.join->needed_code;
  if (ends_job(leave, connection) && (!too_late || connection.in_process)) {
    note(JobEndRequested{host, leave.reason});
    add_failures(verdict.failures, failures_);  // that others have told while their cause was waited for
    return end(std::move(verdict), now);
  }
  if (member_count() == 1 && !others_may_come_back(now) && !others_come_) verdict.reporter = host;
  tell(member, End{verdict});
  members_.losses().forgive(host);
  leave_until_ = now + settings_.leave_window;
  const bool told = learning_ && told_round_ && members_.at(slot).round == told_round_;
  lose(slot, "leaves: " + leave.reason, now, false);
  if (told) --told_size_;  // nobody waits for it
  // Without memory we may not have heard of all the others yet.
  const int left = others_may_come_back(now) ? std::max(member_count(), told_size_) : member_count();
  if (formed_once_ && left < range().min_nodes && phase_ != Phase::ended && !others_come_) {
    Verdict rest = verdict;
    rest.reason =
        fmt::format("node {} left ({}) and fewer than {} nodes remain", host, leave.reason, range().min_nodes);
    end(std::move(rest), now);
  }
}

/// Somebody has no time any more: all that have heard the verdict hear of it. `ended_job` is theirs, if another goes
/// on.
void Rendezvous::end_sooner(Verdict& verdict, std::optional<std::uint64_t> ended_job) {
  if (verdict.kill_now) return;
  changed();
  verdict.kill_now = true;
  for (std::size_t index = 0; index < members_.connections().size(); ++index) {
    const Membership::Connection& other = members_.connections()[index];
    const bool hears = ended_job ? other.ended_job == ended_job : other.member.has_value();
    if (other.open && hears) actions_.push_back(Tell{Peer{static_cast<std::uint32_t>(index)}, End{verdict}});
  }
}

// ---- actions

void Rendezvous::refuse(Peer peer, const std::string& host, const std::string& why) {
  note(NodeRefused{host, why});
  actions_.push_back(Refuse{peer, 68, why});
}

void Rendezvous::tell(const Member& member, CoordinatorMessage message) {
  if (member.peer) actions_.push_back(Tell{*member.peer, std::move(message)});
}

void Rendezvous::note(Note note) {
  last_note_ = note;
  actions_.emplace_back(std::move(note));
}

bool decides(const RendezvousAction& action) {
  const auto* note = std::get_if<Note>(&action);
  if (note) return std::holds_alternative<OrderReceived>(*note);
  const auto* tell = std::get_if<Tell>(&action);
  return tell && !std::holds_alternative<Waiting>(tell->message);
}

}  // namespace torchup
