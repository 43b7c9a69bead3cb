#include "rendezvous/core/torchrun/mixed_job.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "rendezvous/core/link/plausible.hpp"
#include "rendezvous/core/membership/terms_difference.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/torchrun/torchrun_peer.hpp"
#include "rendezvous/core/torchrun/torchrun_static.hpp"

namespace torchup {
namespace {

/// How often a step is due at least; a longer gap is our own sleep.
constexpr Duration step_pace = std::chrono::milliseconds{100};

/// Each reads and writes the whole state at each of its turns.
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

// ---- before the job is mixed

bool MixedJob::is_static(const Rendezvous& pure) {
  if (pure.phase() != Rendezvous::Phase::gathering) return false;
  const auto all = pure.attendance();
  return std::ranges::any_of(all, [](const auto& one) { return one.join && one.join->group_rank; });
}

bool MixedJob::wanted(TorchrunStore& store, const Rendezvous& pure) {
  if (active_ || pure.verdict()) return false;
  if (pure.member_count() == 0) return false;
  if (pure.phase() != Rendezvous::Phase::gathering && pure.member_count() >= pure.terms()->max_nodes) return false;
  if (is_static(pure)) {
    const int nodes = pure.terms()->max_nodes;
    return pure.member_count() < nodes && static_torchrun_waits(store, run_id_, nodes);
  }
  const auto text = store.find(torchrun_state_key(run_id_));
  if (!text || !*text || **text == torchrun_no_state) return false;
  const std::size_t hash = std::hash<std::string_view>{}(**text);
  if (hash == refused_) return false;  // it was read once, and costs as much each time
  const auto pickle = from_base64(**text);
  const auto state = pickle ? read_torchrun_state(*pickle) : Result<TorchrunState>{pickle.error()};
  const bool meets = state && !state->closed && !state->last_heartbeats.empty();
  if (!meets) refused_ = hash;
  return meets;
}

std::vector<RendezvousAction> MixedJob::begin(const Rendezvous& pure, TimePoint now) {
  active_ = true;
  static_ = is_static(pure);
  terms_ = pure.terms();
  now_ = now;
  note(TorchrunCame{});
  auto all = pure.attendance();
  std::ranges::sort(all, {}, &Rendezvous::Attendance::number);
  for (const Rendezvous::Attendance& one : all) {
    members_.open(one.peer, one.observed, one.in_process);
    if (one.busy) {
      actions_.push_back(
          Tell{one.peer, StopWorkers{*one.busy, StopCause::membership_change, "a torchrun agent joins the job"}});
    } else if (one.join && !one.stopping) {
      join(one.peer, *one.join, now);
    }
  }
  return std::exchange(actions_, {});
}

// ---- from then on

std::vector<RendezvousAction> MixedJob::step(const RendezvousEvent& event, TorchrunStore& store, TimePoint now,
                                             UtcTime utc) {
  if (terms_ && now - now_ > step_pace + terms_->lease / 4) grant_leases(now);
  now_ = now;
  std::visit([&](const auto& happened) { on(happened, now); }, event);
  expire(now);
  std::map<TorchrunNode, bool> ours;
  const auto shows = [&](const Part& part) {
    if (part.plays->node()) ours.emplace(*part.plays->node(), part.plays->stopping());
  };
  for (const auto& [slot, part] : parts_) shows(part);
  std::ranges::for_each(leaving_, shows);
  store.ours_are(ours);
  take_turns(store, now, utc);
  return std::exchange(actions_, {});
}

void MixedJob::on(const Connected& event, TimePoint) { members_.open(event.peer, event.observed, event.in_process); }

void MixedJob::on(const Said& event, TimePoint now) {
  if (const auto why = implausible(event.message)) return refuse(event.peer, "an agent", *why);
  if (const auto* joined = std::get_if<Join>(&event.message)) return join(event.peer, *joined, now);
  const auto slot = members_.connection(event.peer).member;
  if (const auto* leave = std::get_if<Leave>(&event.message); leave && !slot) {
    actions_.push_back(Tell{event.peer, End{verdict_of(*leave)}});
    return;
  }
  if (!slot) return;
  members_.at(*slot).alive_at = now;
  Part& part = parts_.at(*slot);
  part.turn_at.reset();
  AgentMessage message = event.message;
  if (auto* leave = std::get_if<Leave>(&message)) {
    leave->ends_job = leave->ends_job || members_.at(*slot).in_process;
    part.leaves_alone = !leave->ends_job;
  }
  part.plays->said(message, now);
}

void MixedJob::on(const Resumed& event, TimePoint now) {
  const Resume& resume = event.resume;
  if (const auto why = implausible(resume)) return refuse(event.peer, resume.join.host, *why);
  const auto known = members_.find(event.peer, resume.join.node);
  if (members_.outdated(event.peer, known)) return;
  if (!known) {
    if (verdict_ || resume.stage == Resume::Stage::ready) return join(event.peer, resume.join, now);
    const Round round = resume.placement ? resume.placement->round : Round{0};
    return tell_given_up(event.peer, resume.join.node, round, "this node was given up while it was silent");
  }
  if (const auto why = misfit(resume.join, known)) return refuse(event.peer, resume.join.host, *why);
  const auto former = members_.connection(event.peer).member;
  if (former && former != known) give_up(*former, "starts anew", now);
  members_.bind(*known, event.peer, now);
  Part& part = parts_.at(*known);
  if (resume.store) part.plays->said(*resume.store, now);
  if (resume.stage == Resume::Stage::succeeded && resume.placement) {
    part.plays->said(WorkersSucceeded{resume.placement->round}, now);
  }
  if (resume.stage == Resume::Stage::failed) part.plays->said(resume.failed, now);
  // Whatever it was told while it was away is told again; what it knows already does no harm.
  const bool placed = part.last && std::holds_alternative<Placed>(*part.last);
  if (part.last && (!placed || resume.stage == Resume::Stage::ready)) actions_.push_back(Tell{event.peer, *part.last});
}

void MixedJob::on(const Alive& event, TimePoint now) {
  if (Member* member = members_.of(event.peer)) member->alive_at = now;
}

void MixedJob::on(const Gone& event, TimePoint now) {
  const auto slot = members_.close(event.peer);
  if (slot && event.end_of_file) give_up(*slot, "has ended", now);
}

// ---- members

void MixedJob::join(Peer peer, const Join& join, TimePoint now) {
  // A place for that node would be taken by the one that the agent has become.
  if (members_.connection(peer).given_up == join.node) return;
  if (verdict_) {
    actions_.push_back(Tell{peer, End{*verdict_}});
    return;
  }
  const auto known = members_.find(peer, join.node);
  if (members_.outdated(peer, known)) return;
  if (known && members_.speaks_elsewhere(members_.at(*known), peer, now)) {
    return refuse(peer, join.host, "its node id is that of an agent that is there");
  }
  if (const auto why = misfit(join, known)) return refuse(peer, join.host, *why);
  const auto former = members_.connection(peer).member;
  if (former && former != known) give_up(*former, "starts anew", now);
  if (!known) {
    const auto [begin, end] = members_.on_host(join.host);
    const auto silent =
        std::find_if(begin, end, [&](const auto& entry) { return members_.silent(members_.at(entry.second), now); });
    if (silent != end) give_up(silent->second, "is replaced by a new agent on the same host", now);
  }
  const Slot slot = known ? *known : members_.enroll(peer, join, now);
  if (known) {
    members_.bind(slot, peer, now);
    members_.update(slot, join);
  }
  Part& part = parts_[slot];
  if (!part.plays) part.plays = part_for(join, members_.connection(peer));
  part.turn_at.reset();
  part.last.reset();
  part.plays->said(join, now);
}

std::optional<std::string> MixedJob::misfit(const Join& join, std::optional<Slot> known) const {
  if (known && members_.at(*known).join.host != join.host) {
    return "its node id is that of an agent on " + members_.at(*known).join.host;
  }
  if (!known && members_.size() >= agents_of_job_max) {
    return fmt::format("a job with torchrun's agents takes {} of torchup's at most", agents_of_job_max);
  }
  return terms_ ? terms_difference(join.terms, *terms_) : std::nullopt;
}

std::unique_ptr<TorchrunPart> MixedJob::part_for(const Join& join, const Membership::Connection& connection) {
  std::string address = address_of(join, connection);
  if (static_) {
    return std::make_unique<TorchrunStatic>(TorchrunStatic::Settings{.run_id = run_id_, .address = std::move(address)});
  }
  return std::make_unique<TorchrunPeer>(TorchrunPeer::Settings{
      .run_id = run_id_, .address = std::move(address), .pid = pid_of(join.node), .number = next_number_++});
}

void MixedJob::tell_given_up(Peer peer, const NodeId& node, Round round, std::string why) {
  members_.connection(peer).given_up = node;
  actions_.push_back(Tell{peer, StopWorkers{round, StopCause::fenced, std::move(why)}});
}

void MixedJob::refuse(Peer peer, const std::string& host, const std::string& why) {
  note(NodeRefused{host, why});
  actions_.push_back(Refuse{peer, 68, why});
}

/// We were asleep, not they: signs of life may lie unread before us.
void MixedJob::grant_leases(TimePoint now) {
  note(CoordinatorSlept{});
  members_.grant_leases(now, now);
}

void MixedJob::expire(TimePoint now) {
  while (const auto slot = members_.next_expired(now)) {
    const std::string why = members_.why_expired(members_.at(*slot), now);
    const Member& member = members_.at(*slot);
    if (member.peer) tell_given_up(*member.peer, member.join.node, parts_.at(*slot).plays->round(), why);
    give_up(*slot, why, now);
  }
}

/// Its workers are taken for dead: the place is free at once, where torchrun's agents would wait for its heartbeat.
void MixedJob::give_up(Slot slot, const std::string& why, TimePoint now) {
  auto part = parts_.extract(slot);
  if (!part.mapped().leaves_alone) note(NodeLost{members_.at(slot).join.host, why});
  members_.remove(slot);
  part.mapped().leaves_alone = true;
  part.mapped().turn_at.reset();
  part.mapped().plays->said(Leave{.ends_job = false}, now);
  leaving_.push_back(std::move(part.mapped()));
}

JobSnapshot MixedJob::past(Duration verdict_kept) const {
  JobSnapshot past{.round = last_round_, .next_round = Round{last_round_.value() + 1}};
  if (!outcome_) return past;
  past.phase = JobSnapshot::Phase::ended;
  past.formed_once = true;
  past.forget_left = verdict_kept;
  past.verdict = outcome_;
  return past;
}

// ---- their parts

void MixedJob::take_turns(TorchrunStore& store, TimePoint now, UtcTime utc) {
  for (auto& [slot, part] : parts_) {
    if (!verdict_) take_turn(part, slot, store, now, utc);
  }
  for (Part& part : leaving_) {
    if (!verdict_) take_turn(part, {}, store, now, utc);
  }
  std::erase_if(leaving_, [](const Part& part) { return part.plays->over(); });
  std::erase_if(parts_, [&](const auto& entry) {
    if (!entry.second.plays->over()) return false;
    members_.remove(entry.first);
    return true;
  });
  if (!verdict_) return;
  while (!parts_.empty()) {
    const Slot slot = parts_.begin()->first;
    tell(slot, End{*verdict_});
    members_.remove(slot);
    parts_.erase(slot);
  }
  leaving_.clear();
}

/// `slot`: whom it is told; nobody: its agent is a member no more.
void MixedJob::take_turn(Part& part, std::optional<Slot> slot, TorchrunStore& store, TimePoint now, UtcTime utc) {
  if (part.turn_at && now < *part.turn_at) return;
  auto messages = part.plays->turn(store, now, utc);
  part.turn_at = now + part.plays->pace();
  if (!messages) {
    note(JobEndRequested{slot ? members_.at(*slot).join.host : "that is lost", messages.error().message()});
    verdict_ = Verdict{.exit_code = 1, .reason = messages.error().message()};
    outcome_ = verdict_;
    return;
  }
  for (CoordinatorMessage& message : *messages) {
    if (const auto* end = std::get_if<End>(&message); end && !part.leaves_alone) {
      note(JobConcluded{end->verdict.exit_code, end->verdict.reason});
      if (!outcome_) outcome_ = end->verdict;
      if (end->verdict.exit_code != 0 && !verdict_) verdict_ = end->verdict;
    }
    if (const auto* placed = std::get_if<Placed>(&message)) {
      last_round_ = std::max(last_round_, placed->placement.round);
    }
    if (slot) tell(*slot, std::move(message));
  }
}

void MixedJob::tell(Slot slot, CoordinatorMessage message) {
  if (!std::holds_alternative<Waiting>(message)) parts_.at(slot).last = message;
  if (const auto peer = members_.at(slot).peer) actions_.push_back(Tell{*peer, std::move(message)});
}

std::string MixedJob::address_of(const Join& join, const Membership::Connection& connection) {
  const bool seen = !connection.observed.empty() && !is_loopback(connection.observed);
  if (seen && !join.address_demanded) return connection.observed;
  return join.addresses.empty() ? "127.0.0.1" : join.addresses.front();
}

}  // namespace torchup
