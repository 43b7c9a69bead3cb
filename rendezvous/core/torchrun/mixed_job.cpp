#include "rendezvous/core/torchrun/mixed_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/link/plausible.hpp"
#include "rendezvous/core/membership/reporter.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/torchrun/torchrun_care.hpp"
#include "rendezvous/core/torchrun/torchrun_static.hpp"

namespace torchup {
namespace {

/// How often a step is due at least; a longer gap is our own sleep.
constexpr Duration step_pace = std::chrono::milliseconds{100};

/// For each that comes or goes the whole state is written.
constexpr int agents_of_job_max = 256;

/// Of an agent whose node id is "host_pid_n", as its link makes it; 0 where it is another.
std::int64_t pid_of(const NodeId& node) {
  const std::string& text = node.value();
  const auto last = text.rfind('_');
  const auto first = last == std::string::npos || last == 0 ? std::string::npos : text.rfind('_', last - 1);
  std::int64_t pid = 0;
  if (first == std::string::npos) return pid;
  const auto [end, error] = std::from_chars(text.data() + first + 1, text.data() + last, pid);
  return error == std::errc{} && end == text.data() + last && pid > 0 ? pid : 0;
}

}  // namespace

// ---- from then on

std::vector<RendezvousAction> MixedJob::step(const RendezvousEvent& event, TorchrunStore& store, TimePoint now,
                                             UtcTime utc) {
  if (terms_ && now - now_ > step_pace + terms_->lease / 4) grant_leases(now);
  now_ = now;
  std::visit([&](const auto& happened) { on(happened, now); }, event);
  expire(now);
  take_turn(store, now, utc);
  return std::exchange(actions_, {});
}

void MixedJob::on(const Connected& event, TimePoint) {
  members_.open(event.peer, event.observed, event.coordinator, event.in_process);
}

void MixedJob::on(const Said& event, TimePoint now) {
  if (const auto why = implausible(event.message)) return refuse(event.peer, "an agent", *why);
  if (const auto* joined = std::get_if<Join>(&event.message)) return join(event.peer, *joined, now);
  on(Alive{event.peer}, now);
  Part* const part = part_of(event.peer);
  const auto* leave = std::get_if<Leave>(&event.message);
  if (leave && !part) {
    actions_.push_back(Tell{event.peer, End{verdict_of(*leave)}});
    return;
  }
  if (!part) return;
  if (!leave) return plays_->said(part->id, event.message, now);
  Leave meant = *leave;
  meant.ends_job = ends_job(*leave, members_.connection(event.peer));
  part->leaves_alone = !meant.ends_job;
  if (part->leaves_alone) members_.losses().forgive(members_.of(event.peer)->join->host);
  plays_->said(part->id, meant, now);
}

void MixedJob::on(const Resumed& event, TimePoint now) {
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
    case Standing::Meaning::newcomer: {
      if (const auto former = members_.displaced(event.peer, {})) give_up(*former, place_lost::starts_anew, now);
      if (resume.stage == Resume::Stage::ready) return enter(event.peer, resume.join, {}, now);
      const Round round = resume.placement ? resume.placement->round : Round{0};
      actions_.push_back(
          Tell{event.peer, members_.give_up(event.peer, resume.join.node, round, given_up_while_silent)});
      return;
    }
    case Standing::Meaning::member:
      break;
  }
  Part* const part = part_of(event.peer);
  if (!part) return;
  if (resume.store) plays_->said(part->id, *resume.store, now);
  if (resume.stage == Resume::Stage::succeeded && resume.placement) {
    plays_->said(part->id, WorkersSucceeded{resume.placement->round}, now);
  }
  if (resume.stage == Resume::Stage::failed) plays_->said(part->id, resume.failed, now);
  // Whatever it was told while it was away is told again; what it knows already does no harm.
  const bool placed = part->last && std::holds_alternative<Placed>(*part->last);
  if (part->last && (!placed || resume.stage == Resume::Stage::ready)) {
    actions_.push_back(Tell{event.peer, *part->last});
  }
}

void MixedJob::on(const Alive& event, TimePoint now) {
  if (Member* member = members_.of(event.peer)) member->alive_at = now;
}

void MixedJob::on(const Gone& event, TimePoint now) {
  std::erase_if(early_, [&](const Said& said) { return said.peer == event.peer; });
  const auto parting = members_.close(event.peer, event.end_of_file, now);
  if (!parting) return;
  if (parting->has_ended) return give_up(parting->slot, place_lost::ended, now);
  note(NodeCutOff{members_.at(parting->slot).join->host, parting->left});
}

// ---- members

PastJobs MixedJob::past() { return {ended_, verdict_ ? &*verdict_ : nullptr, false}; }

MixedJob::Part* MixedJob::part_of(Peer peer) {
  const auto slot = members_.connection(peer).member;
  const auto part = slot ? parts_.find(*slot) : parts_.end();
  return part == parts_.end() ? nullptr : &part->second;
}

void MixedJob::join(Peer peer, const Join& join, TimePoint now) {
  const Standing standing = joins(members_, past(), peer, join, now);
  switch (standing.meaning) {
    case Standing::Meaning::nothing:
      return;
    case Standing::Meaning::refusal:
      return refuse(peer, join.host, standing.why);
    case Standing::Meaning::verdict:
      actions_.push_back(Tell{peer, End{*standing.verdict}});
      return;
    case Standing::Meaning::newcomer:
      if (!outcome_) return enter(peer, join, {}, now);
      std::erase_if(early_, [&](const Said& said) { return said.peer == peer; });
      actions_.push_back(Tell{peer, Waiting{"the former job of this run id is about to end"}});
      return early_.push_back({peer, join});
    case Standing::Meaning::member:
      return enter(peer, join, standing.member, now);
  }
}

void MixedJob::enter(Peer peer, const Join& join, std::optional<Slot> known, TimePoint now) {
  if (const auto former = members_.displaced(peer, known)) give_up(*former, place_lost::starts_anew, now);
  const auto replaced = known ? std::nullopt : members_.replaced_by(join, now);
  if (const auto why = misfit(join, known ? known : replaced)) return refuse(peer, join.host, *why);
  if (replaced) expel(*replaced, place_lost::replaced, now);
  if (known) {
    bind(*known, peer, now);
    members_.update(*known, join);
  }
  take_part(known ? *known : members_.enroll(peer, join, now), join, now);
}

void MixedJob::bind(Slot slot, Peer peer, TimePoint now) {
  if (const auto former = members_.displaced(peer, slot)) give_up(*former, place_lost::starts_anew, now);
  members_.bind(slot, peer, now);
}

void MixedJob::take_part(Slot slot, const Join& join, TimePoint now) {
  ended_.reuse(join.node);
  members_.set_stage(slot, Member::Stage::ready);
  const Member& member = members_.at(slot);
  if (stands_aside(join)) {  // torchrun's agents know none
    note(NodeUnfit{join.host, join.unfit});
    if (member.peer) actions_.push_back(Refuse{*member.peer, unfit_code, unfit_text(join)});
    return;
  }
  const auto [place, is_new] = parts_.try_emplace(slot, Part{next_id_});
  Part& part = place->second;
  if (is_new) {
    plays_->enter(next_id_++, address_of(member), pid_of(join.node));
    if (member.aside) note(NodePutAside{join.host, members_.losses().limits().losses_max});
  }
  if (plays_->over(part.id) && part.last) return tell(slot, CoordinatorMessage{*part.last});
  part.last.reset();
  Join played = join;
  played.terms.hostlist.clear();  // the job's: nobody there reads it
  plays_->said(part.id, played, now);
}

std::optional<std::string> MixedJob::misfit(const Join& join, std::optional<Slot> replaced) const {
  if (!replaced && members_.size() >= agents_of_job_max) {
    return fmt::format("a job with torchrun's agents takes {} of torchup's at most", agents_of_job_max);
  }
  return torchup::misfit(members_, terms_, facts_, join, replaced, now_);
}

void MixedJob::refuse(Peer peer, const std::string& host, const std::string& why) {
  note(NodeRefused{host, why});
  actions_.push_back(Refuse{peer, 68, why});
}

/// We were asleep, not they: signs of life may lie unread before us.
void MixedJob::grant_leases(TimePoint now) {
  note(CoordinatorSlept{});
  slept_until_ = now;
  members_.grant_leases(now, now);
  plays_->slept(now, terms_->lease);
}

void MixedJob::expire(TimePoint now) {
  members_.end_asides(now);
  while (const auto slot = members_.next_expired(now)) {
    expel(*slot, members_.why_expired(members_.at(*slot), now), now);
  }
}

void MixedJob::expel(Slot slot, const std::string& why, TimePoint now) {
  const Member& member = members_.at(slot);
  const auto part = parts_.find(slot);
  if (member.peer && part != parts_.end()) {
    const Round round = plays_->round(part->second.id);
    actions_.push_back(Tell{*member.peer, members_.give_up(*member.peer, member.join->node, round, why)});
  }
  give_up(slot, why, now);
}

/// Its workers are taken for dead: the place is free at once, where torchrun's agents would wait for its heartbeat.
void MixedJob::give_up(Slot slot, const std::string& why, TimePoint now) {
  const auto part = parts_.extract(slot);
  const bool over = !part || plays_->over(part.mapped().id);
  if (!over && !part.mapped().leaves_alone) note_lost(slot, why, now);
  if (!over) lost_agents_.add(members_.at(slot).join->node);
  members_.remove(slot);
  if (!over) plays_->said(part.mapped().id, Leave{.ends_job = false}, now);
}

void MixedJob::note_lost(Slot slot, const std::string& why, TimePoint now) {
  const std::string& host = members_.at(slot).join->host;
  const bool we_were_away = slept_until_ && now <= *slept_until_ + terms_->lease;  // then it gave us up
  if (!we_were_away) members_.losses().lost(host, now);
  note(NodeLost{host, why});
}

// ---- the end

bool MixedJob::over(bool attended) const {
  if (!active_) return false;
  const auto has_gone = [&](const auto& entry) { return plays_->over(entry.second.id); };
  return std::ranges::all_of(parts_, has_gone) && (outcome_ || static_ || !attended);
}

MixedJob::Rest MixedJob::give_back(TorchrunStore& store) {
  if (static_) forget_static_meeting(store, run_id_, terms_->max_nodes);
  if (TorchrunCare* const owner = store.owner()) owner->forget_ours();
  Rest rest{.people = {.members = std::move(members_),
                       .ended = std::move(ended_),
                       .lost = std::move(lost_agents_),
                       .terms = std::move(terms_),
                       .facts = std::move(facts_),
                       .last_round = last_round_},
            .verdict = std::move(outcome_),
            .early = std::move(early_)};
  *this = MixedJob{run_id_};
  return rest;
}

std::map<TorchrunNode, JobView::Node> MixedJob::ours() const {
  std::map<TorchrunNode, JobView::Node> rows;
  for (const auto& [slot, part] : parts_) {
    const auto name = plays_->name(part.id);
    if (!name) continue;
    const Member& member = members_.at(slot);
    JobView::Node row{.local_world_size = member.join->local_world_size, .node = member.join->node.value()};
    row.first_rank = part.first_rank;
    rows.emplace(*name, std::move(row));
  }
  return rows;
}

std::size_t MixedJob::held_bytes() const {
  std::size_t bytes = members_.held_bytes() + ended_.held_bytes() + lost_agents_.held_bytes();
  if (terms_) bytes += text_bytes(terms_->hostlist);
  if (plays_) bytes += plays_->held_bytes();
  for (const auto& [slot, part] : parts_) {
    const auto* const end = part.last ? std::get_if<End>(&*part.last) : nullptr;
    if (end) bytes += torchup::held_bytes(end->verdict);
  }
  for (const auto* verdict : {&verdict_, &outcome_}) bytes += *verdict ? torchup::held_bytes(**verdict) : 0;
  for (const Said& said : early_) bytes += torchup::held_bytes(std::get<Join>(said.message));
  return bytes;
}

// ---- their parts

void MixedJob::take_turn(TorchrunStore& store, TimePoint now, UtcTime utc) {
  if (verdict_) return;
  for (const auto& [slot, part] : parts_) plays_->set_aside(part.id, members_.at(slot).aside);
  auto told = plays_->turn(store, now, utc);
  if (told) {
    for (MixedParts::Told& one : *told) hear(std::move(one));
  } else {
    conclude({.exit_code = 68, .reason = told.error().message()});
    // Or torchrun's agents would wait for ours, which say nothing more.
    if (!static_) (void)store.owner()->close(store);
  }
  std::erase_if(parts_, [&](const auto& entry) {
    const bool left = plays_->over(entry.second.id) && entry.second.leaves_alone;
    if (left) members_.remove(entry.first);
    return left;
  });
  if (!verdict_) return;
  for (const auto& [slot, part] : parts_) {
    const bool heard = part.last && std::holds_alternative<End>(*part.last);
    if (!heard) tell(slot, End{*verdict_});
  }
  parts_.clear();  // those who have not heard it yet are members still
}

/// An agent that is a member no more is told nothing.
void MixedJob::hear(MixedParts::Told told) {
  const auto found = std::ranges::find(parts_, told.to, [](const auto& entry) { return entry.second.id; });
  if (found == parts_.end()) return;
  const auto& [slot, part] = *found;
  auto* const end = std::get_if<End>(&told.message);
  if (end) {
    end->verdict = part.leaves_alone ? told_verdict(std::move(end->verdict), members_.slots().size())
                                     : conclude(std::move(end->verdict));
  }
  if (const auto* placed = std::get_if<Placed>(&told.message)) {
    Member& member = members_.at(slot);
    member.round = placed->placement.round;
    member.seat.group_rank = placed->placement.group_rank;
    last_round_ = std::max(last_round_, placed->placement.round);
  }
  tell(slot, std::move(told.message));
}

/// That the job ends so for all, and what they are told: one of ours has the report.
Verdict MixedJob::conclude(Verdict verdict) {
  verdict.reporter =
      outcome_ ? outcome_->reporter : reporter(members_, verdict.failures, FirstReporter::longest_present, now_);
  verdict = told_verdict(std::move(verdict), members_.slots().size());
  if (outcome_ != verdict) note(JobConcluded{verdict.exit_code, verdict.reason});
  if (!outcome_) outcome_ = verdict;
  if (verdict.exit_code != 0 && !verdict_) verdict_ = verdict;
  return verdict;
}

void MixedJob::tell(Slot slot, CoordinatorMessage message) {
  Part& part = parts_.at(slot);
  if (!std::holds_alternative<Waiting>(message)) part.last = message;
  if (const auto* const placed = std::get_if<Placed>(&message)) part.first_rank = placed->placement.first_rank;
  if (const auto peer = members_.at(slot).peer) actions_.push_back(Tell{*peer, std::move(message)});
}

std::string MixedJob::address_of(const Member& member) {
  const bool seen = !member.observed.empty() && !is_loopback(member.observed);
  if (seen && !member.join->address_demanded) return member.observed;
  return member.join->addresses.empty() ? "127.0.0.1" : member.join->addresses.front();
}

}  // namespace torchup
