// The round machine: who belongs to the job, and what it means to lose one.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/core/membership/same_world.hpp"
#include "rendezvous/core/membership/terms_difference.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/text/hostlist.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// Whether the agent has never had a place here, nor lost its membership.
bool is_first_join(const Join& join) { return !join.former && agent_life(join.node) == 0; }

}  // namespace

std::vector<Rendezvous::Attendance> Rendezvous::attendance() const {
  const bool runs = phase_ == Phase::running || phase_ == Phase::doubting || phase_ == Phase::restoring;
  std::vector<Attendance> list;
  for (std::size_t index = 0; index < members_.connections().size(); ++index) {
    const Membership::Connection& connection = members_.connections()[index];
    if (!connection.open) continue;
    Attendance& one = list.emplace_back(Attendance{Peer{static_cast<std::uint32_t>(index)}, connection.observed,
                                                   connection.in_process, connection.number});
    if (!connection.member) continue;
    const Member& member = members_.at(*connection.member);
    one.join = &member.join;
    one.stopping = member.stage == Stage::stopping;
    if (runs && member.in_round()) one.busy = round_;
  }
  return list;
}

/// The verdict that this agent has not heard yet: of the job that has ended, or of one before that.
const Verdict* Rendezvous::missed_verdict(Peer peer, const Join& join, const Resume* resume, TimePoint now) {
  const Membership::Connection& connection = members_.connection(peer);
  const bool ended = phase_ == Phase::ended;
  if (connection.member && members_.at(*connection.member).join.node == join.node) return ended ? &*verdict_ : nullptr;
  if (connection.ended_job) {
    const EndedJobs::EndedJob* job = ended_.find(*connection.ended_job);
    return job ? &job->verdict : nullptr;
  }
  std::optional<Round> round;
  if (join.former) round = join.former->round;
  if (resume && resume->placement) round = resume->placement->round;
  if (resume || !is_first_join(join)) {
    if (const EndedJobs::EndedJob* job = ended_.find(join.node, round, now)) return &job->verdict;
  }
  if (!ended) return nullptr;
  return resume || connection.member || !is_first_join(join) ? &*verdict_ : nullptr;
}

std::optional<std::string> Rendezvous::misfit(const Join& join, std::optional<Slot> known) const {
  if (!known && member_count() >= settings_.agents_max) {
    return fmt::format("this coordinator takes {} agents at most", settings_.agents_max);
  }
  if (join.terms.rank_order == RankOrder::unknown) {
    return "this coordinator does not know the order of ranks that the agent wants: it needs a newer release";
  }
  if (!terms_) return {};
  if (auto what = terms_difference(join.terms, *terms_)) return what;
  if (join.group_rank) {
    if (join.group_rank->value() < 0 || join.group_rank->value() >= terms_->max_nodes) {
      return fmt::format("--node-rank {} does not fit {}", join.group_rank->value(),
                         nodes_wanted(terms_->min_nodes, terms_->max_nodes));
    }
    for (const auto& [node, slot] : members_.slots()) {
      if (slot == known || members_.at(slot).join.group_rank != join.group_rank) continue;
      return fmt::format("--node-rank {} is used twice: by {} and by {}", join.group_rank->value(), join.host,
                         members_.at(slot).join.host);
    }
  }
  if (terms_->same_world == SameWorld::fail) {
    static const std::string here = "this node", there = "the job's first node";
    const HostFacts both[] = {{&there, &facts_}, {&here, &join.facts}};
    if (const std::string table = world_differences(both); !table.empty()) return "the nodes differ:\n" + table;
  }
  return {};
}

void Rendezvous::newcomer(Peer peer, const Join& join, TimePoint now) {
  if (const auto former = members_.connection(peer).member) supersede(*former, now);
  const auto replaced = silent_on_host(join, now);
  // Where nobody else is there, the job begins with it, by its own terms.
  const bool begins = replaced && member_count() == 1 && !formed_once_;
  if (const auto why = begins ? std::nullopt : misfit(join, replaced)) {
    if (refusals_.size() < refusals_kept_max || refusals_.contains(join.host)) refusals_[join.host] = *why;
    arm_roster();
    return refuse(peer, join.host, *why);
  }
  if (replaced) expel(*replaced, "is replaced by a new agent on the same host", now);
  if (join.former) {
    await_others(now);
    if (phase_ == Phase::restoring && join.former->round >= round_) round_is_over(join.host, *join.former, now);
    learn(*join.former, now);
  }
  const Slot slot = enroll(peer, join, now);
  if (join.former) was_in(slot, *join.former);
}

/// A member wants a place again, or says so twice.
void Rendezvous::join_again(Slot slot, Peer peer, const Join& join, TimePoint now) {
  if (members_.at(slot).join.host != join.host) {
    return refuse(peer, join.host, "its node id is that of an agent on " + members_.at(slot).join.host);
  }
  if (members_.speaks_elsewhere(members_.at(slot), peer, now)) {
    return refuse(peer, join.host,
                  fmt::format("its node id {} is that of an agent that is there, by a connection from {}; this one "
                              "comes from {}",
                              join.node.value(), members_.at(slot).observed, members_.connection(peer).observed));
  }
  if (const auto why = misfit(join, slot)) return refuse(peer, join.host, *why);
  if (members_.at(slot).peer != peer) bind(slot, peer, now);
  if (members_.at(slot).in_round()) {
    if (phase_ == Phase::hosting) return;
    count_change();  // it gave its place up by itself
    stop_round(StopCause::membership_change, "node " + join.host + " starts anew", now);
  }
  if (members_.at(slot).join != join) members_.update(slot, join);
  set_stage(slot, Stage::ready);
}

Rendezvous::Slot Rendezvous::enroll(Peer peer, const Join& join, TimePoint now) {
  changed();
  if (!terms_) {
    terms_ = join.terms;
    facts_ = join.facts;
    terms_->hostlist.clear();
  }
  if (terms_->hostlist.empty() && !join.terms.hostlist.empty()) {
    terms_->hostlist = join.terms.hostlist;
    const auto hosts = expand_hostlist(terms_->hostlist);
    expected_hosts_ = hosts ? *hosts : std::vector<std::string>{};
  }
  refusals_.erase(join.host);
  ended_.reuse(join.node);
  forget_at_.reset();
  deserted_ = false;
  if (members_.empty() && phase_ == Phase::gathering) gather(now);
  const Slot slot = members_.enroll(peer, join, now);
  if (members_.at(slot).aside) note(NodePutAside{join.host, settings_.losses_max});
  arm_roster();
  note(NodeJoined{join.host, join.local_world_size, member_count()});
  return slot;
}

void Rendezvous::bind(Slot slot, Peer peer, TimePoint now) {
  const auto other = members_.connection(peer).member;
  if (other && other != slot) supersede(*other, now);
  if (blocker_ == slot) blocker_.reset();
  if (!members_.bind(slot, peer, now)) return;
  deserted_ = false;
  if (members_.awaited() == 0) note(AllBack{});
}

void Rendezvous::set_stage(Slot slot, Stage stage) {
  members_.set_stage(slot, stage);
  arm_roster();
}

void Rendezvous::remove(Slot slot) {
  if (blocker_ == slot) blocker_.reset();
  if (learning_ && told_round_ && members_.at(slot).round == told_round_) --told_count_;
  members_.remove(slot);
  arm_roster();
}

/// `counts`: towards being put aside.
void Rendezvous::lose(Slot slot, const std::string& how, TimePoint now, bool counts) {
  if (phase_ == Phase::ended) return remove(slot);
  const std::string host = members_.at(slot).join.host;
  const Stage stage = members_.at(slot).stage;
  const TimePoint alive_at = members_.at(slot).alive_at;
  const bool we_were_away = slept_until_ && now <= *slept_until_ + terms_->lease;  // then it gave us up
  if (counts && !we_were_away) members_.losses().lost(host, now);
  note(NodeLost{host, how});

  lost_agents_.push_back(agent_name(members_.at(slot).join.node));
  if (lost_agents_.size() > lost_agents_max) lost_agents_.pop_front();
  if (members_.at(slot).in_round()) std::erase(seats_, slot);
  const bool was_hosting = phase_ == Phase::hosting;
  remove(slot);
  if (stage == Stage::seated) {
    if (!was_hosting) count_change();
    stop_round(StopCause::membership_change, "node " + host + " " + how, now);
  } else if (phase_ == Phase::gathering && counted_failure_at_ && alive_at <= *counted_failure_at_) {
    // It was gone before the failure that we counted: that one was collateral.
    restarts_.give_back();
    count_change();
    counted_failure_at_.reset();
    changed();
    note(RestartGivenBack{host});
  }
  if (!members_.empty()) return;
  gather_until_.reset();
  last_call_until_.reset();
  forget_at_ = now;
  if (formed_once_ && !deserted_) *forget_at_ += std::min(terms_->join_timeout, settings_.desertion_limit);
  forget_at_ = std::max(*forget_at_, ended_.kept_until());
  if (formed_once_) return;
  terms_.reset();
  expected_hosts_.clear();
}

/// Its connection speaks for another from here on, who would take a place that is on its way for its own.
void Rendezvous::supersede(Slot slot, TimePoint now) {
  const Member& member = members_.at(slot);
  const bool placed = member.in_round() && phase_ != Phase::hosting && phase_ != Phase::ended;
  if (placed) tell(member, StopWorkers{round_, StopCause::membership_change, "this node starts anew"});
  lose(slot, "starts anew", now);
}

void Rendezvous::expel(Slot slot, const std::string& how, TimePoint now) {
  const Member& member = members_.at(slot);
  if (member.peer) tell_given_up(*member.peer, member.join.node, member.round.value_or(round_), how);
  lose(slot, how, now);
}

void Rendezvous::tell_given_up(Peer peer, const NodeId& node, Round round, std::string why) {
  members_.connection(peer).given_up = node;
  actions_.push_back(Tell{peer, StopWorkers{round, StopCause::fenced, std::move(why)}});
}

/// A node that starts again takes its old place at once; its former life may be silent for long yet.
std::optional<Rendezvous::Slot> Rendezvous::silent_on_host(const Join& join, TimePoint now) const {
  const auto [begin, end] = members_.on_host(join.host);
  const auto old = std::find_if(begin, end, [&](const auto& entry) {
    const Member& member = members_.at(entry.second);
    return members_.silent(member, now) && member.join.group_rank == join.group_rank;
  });
  return old == end ? std::nullopt : std::optional{old->second};
}

void Rendezvous::expire(TimePoint now) {
  members_.end_asides(now);
  while (const auto slot = members_.next_expired(now)) {
    if (phase_ == Phase::ended) {
      remove(*slot);
    } else {
      expel(*slot, members_.why_expired(members_.at(*slot), now), now);
    }
  }
}

void Rendezvous::grant_leases(TimePoint now) {
  note(CoordinatorSlept{});
  slept_until_ = now;
  if (learning_ && settings_.started) settings_.started = now;
  members_.grant_leases(now, return_by(now));
}

}  // namespace torchup
