// The round machine: who belongs to the job, and what it means to lose one.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/hostlist.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// None where the list is empty, or none.
std::vector<std::string> hosts_of(const Join& join) {
  auto hosts = expand_hostlist(join.terms.hostlist);
  return hosts ? std::move(*hosts) : std::vector<std::string>{};
}

}  // namespace

std::optional<Round> Rendezvous::running() const {
  const bool runs = phase_ == Phase::running || phase_ == Phase::doubting || phase_ == Phase::restoring;
  return runs ? std::optional{round_} : std::nullopt;
}

std::size_t Rendezvous::held_bytes() const {
  const std::size_t verdict = verdict_ ? torchup::held_bytes(*verdict_) : 0;
  return members_.held_bytes() + ended_.held_bytes() + lost_agents_.held_bytes() + torchup::held_bytes(failures_) +
         verdict + expected_bytes_ + torchup::held_bytes(late_) + refusals_.size() * refusal_kept_bytes_max;
}

JobPeople Rendezvous::people() const { return {members_, ended_, lost_agents_, terms_, facts_, round_}; }

std::optional<std::string> Rendezvous::misfit(const Join& join, std::optional<Slot> replaced) const {
  if (!replaced && member_count() >= settings_.agents_max) {
    return fmt::format("this coordinator takes {} agents at most", settings_.agents_max);
  }
  if (!terms_ || terms_->hostlist.empty()) {
    if (auto why = too_many_hosts(join)) return why;
  }
  return torchup::misfit(members_, terms_, facts_, join, replaced, now_);
}

/// A few letters stand for many hosts. More than can be here are not kept.
std::optional<std::string> Rendezvous::too_many_hosts(const Join& join) const {
  const std::size_t hosts = hosts_of(join).size();
  if (hosts <= static_cast<std::size_t>(settings_.agents_max)) return {};
  return fmt::format("the host list names {} hosts, and this coordinator takes {} agents at most", hosts,
                     settings_.agents_max);
}

std::size_t Rendezvous::expected_bytes(const Join& join) const {
  if (terms_ && !terms_->hostlist.empty()) return 0;
  return text_bytes(join.terms.hostlist) + torchup::held_bytes(hosts_of(join));
}

void Rendezvous::expect(std::vector<std::string> hosts) {
  expected_hosts_ = std::move(hosts);
  expected_bytes_ = torchup::held_bytes(expected_hosts_) + (terms_ ? text_bytes(terms_->hostlist) : 0);
}

void Rendezvous::newcomer(Peer peer, const Join& join, TimePoint now) {
  if (const auto former = members_.displaced(peer, {})) supersede(*former, now);
  const auto replaced = members_.replaced_by(join, now);
  // Where nobody else is there, the job begins with it, by its own terms.
  const bool begins = replaced && member_count() == 1 && !formed_once_;
  auto why = begins ? too_many_hosts(join) : misfit(join, replaced);
  if (begins && !why) why = torchup::misfit(members_, {}, {}, join, replaced, now);
  if (why) {
    if (refusals_.size() < refusals_kept_max || refusals_.contains(join.host))
      refusals_[join.host] = cut_text(*why, refusal_kept_bytes_max);
    arm_roster();
    return refuse(peer, join.host, *why);
  }
  const bool drained = replaced && members_.at(*replaced).drained;
  if (replaced) expel(*replaced, place_lost::replaced, now);
  if (join.former) {
    await_others(join, now);
    if (phase_ == Phase::restoring && join.former->round >= round_) round_is_over(join.host, *join.former, now);
    learn(*join.former, now);
  }
  const Slot slot = enroll(peer, join, now);
  if (drained) drain_agent(slot);
  if (join.former) was_in(slot, *join.former);
}

/// A member wants a place again, or says so twice.
void Rendezvous::join_again(Slot slot, Peer peer, const Join& join, TimePoint now) {
  if (const auto why = misfit(join, slot)) return refuse(peer, join.host, *why);
  if (members_.at(slot).peer != peer) bind(slot, peer, now);
  if (members_.at(slot).in_round()) {
    if (phase_ == Phase::hosting) return;
    count_change();  // it gave its place up by itself
    stop_round(StopCause::membership_change, "node " + join.host + " starts anew", now);
  }
  says_anew(slot, join);
  set_stage(slot, Stage::ready);
}

void Rendezvous::says_anew(Slot slot, const Join& join) {
  const Member& member = members_.at(slot);
  const bool news = member.join->unfit != join.unfit;
  members_.update(slot, join);
  if (!news) return;
  if (!member.is_fit()) note(NodeUnfit{join.host, join.unfit});
  arm_roster();
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
    expect(hosts_of(join));
  }
  refusals_.erase(join.host);
  ended_.reuse(join.node);
  forget_at_.reset();
  deserted_ = false;
  if (members_.empty() && phase_ == Phase::gathering) {
    gather(now);
    if (!formed_once_) begun_at_ = now;
  }
  const Slot slot = members_.enroll(peer, join, now);
  members_.set_drained(slot, drained_.contains(agent_name(join.node)));
  note_way(members_.at(slot));
  if (members_.at(slot).aside) note(NodePutAside{join.host, settings_.losses_max});
  arm_roster();
  note(NodeJoined{join.host, join.local_world_size, member_count()});
  if (!join.unfit.empty()) note(NodeUnfit{join.host, join.unfit});
  return slot;
}

void Rendezvous::bind(Slot slot, Peer peer, TimePoint now) {
  if (const auto former = members_.displaced(peer, slot)) supersede(*former, now);
  if (blocker_ == slot) blocker_.reset();
  const bool awaited = members_.bind(slot, peer, now);
  note_way(members_.at(slot));
  if (!awaited) return;
  deserted_ = false;
  last_returned_at_ = now;
  if (missing_.erase(slot) > 0) one_returned_ = true;
  if (members_.awaited() == 0) note(AllBack{});
}

/// Only members': anybody may say hello, by whatever way.
void Rendezvous::note_way(const Member& member) {
  const bool near = member.observed.empty() || is_loopback(member.observed);
  if (near || member.reached.empty() || member.reached == coordinator_address_) return;
  coordinator_address_ = member.reached;
  changed();
}

void Rendezvous::set_stage(Slot slot, Stage stage) {
  members_.set_stage(slot, stage);
  arm_roster();
}

void Rendezvous::remove(Slot slot) {
  if (blocker_ == slot) blocker_.reset();
  missing_.erase(slot);
  if (learning_ && told_round_ && members_.at(slot).round == told_round_) --told_count_;
  members_.remove(slot);
  arm_roster();
}

/// `counts`: towards being put aside.
void Rendezvous::lose(Slot slot, const std::string& how, TimePoint now, bool counts) {
  if (phase_ == Phase::ended) return remove(slot);
  const std::string host = members_.at(slot).join->host;
  const Stage stage = members_.at(slot).stage;
  const TimePoint alive_at = members_.at(slot).alive_at;
  const std::optional<Round> last_round = members_.at(slot).round;
  const bool we_were_away = slept_until_ && now <= *slept_until_ + terms_->lease;  // then it gave us up
  if (counts && !we_were_away) members_.losses().lost(host, now);
  note(NodeLost{host, how});

  lost_agents_.add(members_.at(slot).join->node);
  const bool has_ended = how == place_lost::ended || how == place_lost::replaced;
  if (has_ended) drained_.erase(agent_name(members_.at(slot).join->node));
  if (members_.at(slot).in_round()) std::erase(seats_, slot);
  const bool was_hosting = phase_ == Phase::hosting;
  remove(slot);
  if (stage == Stage::seated) {
    if (!was_hosting) count_change();
    stop_round(StopCause::membership_change, "node " + host + " " + how, now);
  } else if (phase_ == Phase::gathering && counted_failure_at_ && alive_at <= *counted_failure_at_ &&
             last_round == counted_failure_in_) {
    // It was gone before the failure that we counted: that one was collateral. A spare has cost nobody a worker.
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
  range_.reset();
  drained_.clear();
  expect({});
}

/// Its connection speaks for another from here on, who would take a place that is on its way for its own.
void Rendezvous::supersede(Slot slot, TimePoint now) {
  const Member& member = members_.at(slot);
  const bool placed = member.in_round() && phase_ != Phase::hosting && phase_ != Phase::ended;
  if (placed) tell(member, StopWorkers{round_, StopCause::membership_change, "this node starts anew"});
  lose(slot, place_lost::starts_anew, now);
}

void Rendezvous::expel(Slot slot, const std::string& how, TimePoint now) {
  const Member& member = members_.at(slot);
  if (member.peer) give_up(*member.peer, member.join->node, member.round.value_or(round_), how);
  lose(slot, how, now);
}

void Rendezvous::give_up(Peer peer, const NodeId& node, Round round, std::string why) {
  actions_.push_back(Tell{peer, members_.give_up(peer, node, round, std::move(why))});
}

void Rendezvous::expire(TimePoint now) {
  members_.end_asides(now);
  lose_holder(now);
  while (const auto slot = members_.next_expired(now)) {
    if (const auto until = kept_until(*slot, now)) {
      members_.await_until(*slot, *until);
      continue;
    }
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
  // Nor may we decide by our own limits before we have read what came meanwhile.
  for (auto* at : {&gather_until_, &store_until_, &patience_until_}) {
    if (*at) *at = std::max(**at, now + terms_->lease);
  }
}

}  // namespace torchup
