#include "rendezvous/core/torchrun/mixed_job.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/torchrun/torchrun_peer.hpp"
#include "rendezvous/core/torchrun/torchrun_static.hpp"

namespace torchup {
namespace {

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

bool MixedJob::wanted(TorchrunStore& store, const Rendezvous& pure) const {
  if (active_ || pure.verdict()) return false;
  if (pure.member_count() == 0) return false;
  if (pure.phase() != Rendezvous::Phase::gathering && pure.member_count() >= pure.terms()->max_nodes) return false;
  if (is_static(pure)) {
    const int nodes = pure.terms()->max_nodes;
    return pure.member_count() < nodes && static_torchrun_waits(store, run_id_, nodes);
  }
  const auto text = store.find(torchrun_state_key(run_id_));
  if (!text || !*text || **text == torchrun_no_state) return false;
  const auto pickle = from_base64(**text);
  const auto state = pickle ? read_torchrun_state(*pickle) : Result<TorchrunState>{pickle.error()};
  return state && !state->closed && !state->last_heartbeats.empty();
}

std::vector<RendezvousAction> MixedJob::begin(const Rendezvous& pure, TimePoint now) {
  active_ = true;
  static_ = is_static(pure);
  note(TorchrunCame{});
  for (const Rendezvous::Attendance& one : pure.attendance()) {
    connections_[one.peer] = {.observed = one.observed, .in_process = one.in_process, .number = one.number};
    connection_count_ = std::max(connection_count_, one.number);
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
  std::visit([&](const auto& happened) { on(happened, now); }, event);
  for (auto& [node, member] : members_) {
    const bool silent = !member->in_process && now - member->alive_at > member->lease;
    if (!silent || member->leaves_alone) continue;
    tell(*member, StopWorkers{member->part->round(), StopCause::fenced, "this node was silent for too long"});
    give_up(*member, member->peer ? "was silent" : "did not come back after its connection broke", now);
  }
  std::map<TorchrunNode, bool> ours;
  for (const auto& [node, member] : members_) {
    if (member->part->node()) ours.emplace(*member->part->node(), member->part->stopping());
  }
  store.ours_are(ours);
  take_turns(store, now, utc);
  return std::exchange(actions_, {});
}

void MixedJob::on(const Connected& event, TimePoint) {
  connections_[event.peer] = {
      .observed = event.observed, .in_process = event.in_process, .number = ++connection_count_};
}

void MixedJob::on(const Said& event, TimePoint now) {
  if (const auto* joined = std::get_if<Join>(&event.message)) return join(event.peer, *joined, now);
  Member* member = member_of(event.peer);
  if (const auto* leave = std::get_if<Leave>(&event.message)) {
    if (!member) {
      actions_.push_back(Tell{event.peer, End{verdict_of(*leave)}});
      return;
    }
    Leave word = *leave;
    word.ends_job = word.ends_job || member->in_process;
    member->leaves_alone = !word.ends_job;
    member->turn_at.reset();
    return member->part->said(word, now);
  }
  if (!member) return;
  member->alive_at = now;
  member->turn_at.reset();
  member->part->said(event.message, now);
}

void MixedJob::on(const Resumed& event, TimePoint now) {
  const Resume& resume = event.resume;
  if (outdated(event.peer, resume.join.node)) return;
  const auto known = members_.find(resume.join.node.value());
  if (known == members_.end()) {
    if (verdict_ || resume.stage == Resume::Stage::ready) return join(event.peer, resume.join, now);
    const Round round = resume.placement ? resume.placement->round : Round{0};
    actions_.push_back(
        Tell{event.peer, StopWorkers{round, StopCause::fenced, "this node was given up while it was silent"}});
    return;
  }
  Member& member = *known->second;
  bind(member, event.peer, now);
  connections_[event.peer].node = known->first;
  if (resume.store) member.part->said(*resume.store, now);
  switch (resume.stage) {
    case Resume::Stage::succeeded:
      if (resume.placement) member.part->said(WorkersSucceeded{resume.placement->round}, now);
      break;
    case Resume::Stage::failed:
      member.part->said(resume.failed, now);
      break;
    default:
      break;
  }
  // Whatever it was told while it was away is told again; what it knows already does no harm.
  const bool placed = member.last && std::holds_alternative<Placed>(*member.last);
  if (member.last && (!placed || resume.stage == Resume::Stage::ready))
    actions_.push_back(Tell{event.peer, *member.last});
}

void MixedJob::on(const Alive& event, TimePoint now) {
  if (Member* member = member_of(event.peer)) member->alive_at = now;
}

void MixedJob::on(const Gone& event, TimePoint now) {
  Member* member = member_of(event.peer);
  connections_.erase(event.peer);
  if (!member || member->peer != event.peer) return;
  member->peer.reset();
  if (event.end_of_file) give_up(*member, "has ended", now);
}

void MixedJob::join(Peer peer, const Join& join, TimePoint now) {
  if (verdict_) {
    actions_.push_back(Tell{peer, End{*verdict_}});
    return;
  }
  if (outdated(peer, join.node)) return;
  Connection& connection = connections_[peer];
  auto& member = members_[join.node.value()];
  if (!member) {
    member = std::make_unique<Member>();
    member->part = part_for(join, connection);
  }
  connection.node = join.node.value();
  member->host = join.host;
  member->lease = join.terms.lease;
  member->in_process = connection.in_process;
  bind(*member, peer, now);
  member->turn_at.reset();
  member->last.reset();
  member->part->said(join, now);
}

std::unique_ptr<TorchrunPart> MixedJob::part_for(const Join& join, const Connection& connection) {
  std::string address = address_of(join, connection);
  if (static_) {
    return std::make_unique<TorchrunStatic>(TorchrunStatic::Settings{.run_id = run_id_, .address = std::move(address)});
  }
  return std::make_unique<TorchrunPeer>(TorchrunPeer::Settings{
      .run_id = run_id_, .address = std::move(address), .pid = pid_of(join.node), .number = next_number_++});
}

void MixedJob::bind(Member& member, Peer peer, TimePoint now) {
  member.peer = peer;
  member.connection = connections_[peer].number;
  member.alive_at = now;
}

/// An agent that doubts its connection opens another and restates itself there. What was under way on the first may
/// arrive after that.
bool MixedJob::outdated(Peer peer, const NodeId& node) const {
  const auto known = members_.find(node.value());
  const auto connection = connections_.find(peer);
  return known != members_.end() && connection != connections_.end() &&
         connection->second.number < known->second->connection;
}

/// Its workers are taken for dead: the place is free at once, where torchrun's agents would wait for its heartbeat.
void MixedJob::give_up(Member& member, const std::string& why, TimePoint now) {
  note(NodeLost{member.host, why});
  member.peer.reset();
  member.leaves_alone = true;
  member.turn_at.reset();
  member.part->said(Leave{.ends_job = false}, now);
}

void MixedJob::take_turns(TorchrunStore& store, TimePoint now, UtcTime utc) {
  std::vector<std::string> over;
  for (auto& [node, member] : members_) {
    if (member->turn_at && now < *member->turn_at) continue;
    auto messages = member->part->turn(store, now, utc);
    member->turn_at = now + member->part->pace();
    if (!messages) {
      note(JobEndRequested{member->host, messages.error().message()});
      verdict_ = Verdict{.exit_code = 1, .reason = messages.error().message()};
      break;
    }
    for (CoordinatorMessage& message : *messages) {
      if (const auto* end = std::get_if<End>(&message); end && !member->leaves_alone) {
        note(JobConcluded{end->verdict.exit_code, end->verdict.reason});
        if (end->verdict.exit_code != 0 && !verdict_) verdict_ = end->verdict;
      }
      tell(*member, std::move(message));
    }
    if (member->part->over()) over.push_back(node);
  }
  for (const std::string& node : over) members_.erase(node);
  if (!verdict_) return;
  for (auto& [node, member] : members_) tell(*member, End{*verdict_});
  members_.clear();
}

void MixedJob::tell(Member& member, CoordinatorMessage message) {
  if (!std::holds_alternative<Waiting>(message)) member.last = message;
  if (member.peer) actions_.push_back(Tell{*member.peer, std::move(message)});
}

MixedJob::Member* MixedJob::member_of(Peer peer) {
  const auto connection = connections_.find(peer);
  if (connection == connections_.end()) return nullptr;
  const auto found = members_.find(connection->second.node);
  return found == members_.end() ? nullptr : found->second.get();
}

std::string MixedJob::address_of(const Join& join, const Connection& connection) {
  const bool seen = !connection.observed.empty() && !is_loopback(connection.observed);
  if (seen && !join.address_demanded) return connection.observed;
  return join.addresses.empty() ? "127.0.0.1" : join.addresses.front();
}

}  // namespace torchup
