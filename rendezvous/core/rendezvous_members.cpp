// The round machine: who belongs to the job, and until when.
#include "rendezvous/core/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/hostlist.hpp"
#include "rendezvous/core/same_world.hpp"
#include "rendezvous/core/wording.hpp"

namespace torchup {
namespace {

/// "--nnodes is 2:2 here and 2:4 in the job" for the first term that differs.
std::optional<std::string> difference(const JobTerms& mine, const JobTerms& job) {
  const auto say = [](std::string_view name, const std::string& left, const std::string& right) {
    return std::string{name} + " is " + left + " here and " + right + " in the job";
  };
  const auto nnodes = [](const JobTerms& terms) {
    return std::to_string(terms.min_nodes) + ":" + std::to_string(terms.max_nodes);
  };
  const auto count = [](int value) { return std::to_string(value); };
  if (nnodes(mine) != nnodes(job)) return say("--nnodes", nnodes(mine), nnodes(job));
  if (mine.nodes_multiple_of != job.nodes_multiple_of) {
    return say("--nnodes-multiple-of", count(mine.nodes_multiple_of), count(job.nodes_multiple_of));
  }
  if (mine.max_restarts != job.max_restarts) {
    return say("--max-restarts", count(mine.max_restarts), count(job.max_restarts));
  }
  if (mine.restart_window != job.restart_window) {
    return say("--restart-window", seconds(mine.restart_window), seconds(job.restart_window));
  }
  if (mine.join_timeout != job.join_timeout) {
    return say("join_timeout", seconds(mine.join_timeout), seconds(job.join_timeout));
  }
  if (mine.last_call != job.last_call) return say("last_call_timeout", seconds(mine.last_call), seconds(job.last_call));
  if (mine.lease != job.lease) return say("the lease", seconds(mine.lease), seconds(job.lease));
  if (mine.rank_order != job.rank_order) {
    return say("--rank-order", count(static_cast<int>(mine.rank_order)), count(static_cast<int>(job.rank_order)));
  }
  if (mine.same_world != job.same_world) {
    return say("--same-world", count(static_cast<int>(mine.same_world)), count(static_cast<int>(job.same_world)));
  }
  // A node that was told of no list, such as one beside Slurm, still belongs.
  if (!mine.hostlist.empty() && !job.hostlist.empty() && mine.hostlist != job.hostlist)
    return say("the host list", mine.hostlist, job.hostlist);
  return {};
}

}  // namespace

Rendezvous::Member* Rendezvous::member_of(Peer peer) {
  const auto slot = connections_.at(peer.value()).member;
  return slot ? &members_[*slot] : nullptr;
}

/// The member that is `node`. It mostly speaks by the connection that is its own.
std::optional<Rendezvous::Slot> Rendezvous::slot_of(Peer peer, const NodeId& node) const {
  const auto own = connections_.at(peer.value()).member;
  if (own && members_[*own].join.node == node) return own;
  const auto known = slot_of_node_.find(node.value());
  return known == slot_of_node_.end() ? std::nullopt : std::optional{known->second};
}

/// An agent that doubts its connection opens another and restates itself there. What was under way on the first may
/// arrive after that.
bool Rendezvous::outdated(Peer peer, std::optional<Slot> slot) const {
  return slot && connections_.at(peer.value()).number < members_[*slot].connection;
}

std::vector<Rendezvous::Attendance> Rendezvous::attendance() const {
  const bool runs = phase_ == Phase::running || phase_ == Phase::doubting || phase_ == Phase::restoring;
  std::vector<Attendance> list;
  for (std::size_t index = 0; index < connections_.size(); ++index) {
    const Connection& connection = connections_[index];
    if (!connection.open) continue;
    Attendance& one = list.emplace_back(Attendance{Peer{static_cast<std::uint32_t>(index)}, connection.observed,
                                                   connection.in_process, connection.number});
    if (!connection.member) continue;
    const Member& member = members_[*connection.member];
    one.join = &member.join;
    one.stopping = member.stage == Stage::stopping;
    if (runs && (member.stage == Stage::seated || member.stage == Stage::finished)) one.busy = round_;
  }
  return list;
}

std::optional<std::string> Rendezvous::misfit(const Join& join) const {
  if (member_count() >= settings_.agents_max) {
    return "this coordinator takes " + std::to_string(settings_.agents_max) + " agents at most";
  }
  if (join.terms.rank_order == RankOrder::unknown) {
    return "this coordinator does not know the order of ranks that the agent wants: it needs a newer release";
  }
  if (join.terms.lease < lease_min) return "the lease is shorter than " + seconds(lease_min);
  if (join.terms.join_timeout <= Duration::zero()) return "the join timeout is not positive";
  if (!terms_) return {};
  if (const auto what = difference(join.terms, *terms_)) return what;
  if (join.group_rank) {
    if (join.group_rank->value() < 0 || join.group_rank->value() >= terms_->max_nodes) {
      return "--node-rank " + std::to_string(join.group_rank->value()) + " does not fit " + nodes_wanted(*terms_);
    }
    for (const auto& [node, slot] : slot_of_node_) {
      if (members_[slot].join.group_rank != join.group_rank) continue;
      return "--node-rank " + std::to_string(join.group_rank->value()) + " is used twice: by " + join.host +
             " and by " + members_[slot].join.host;
    }
  }
  if (terms_->same_world == SameWorld::fail) {
    static const std::string here = "this node", there = "the job's first node";
    const HostFacts both[] = {{&there, &facts_}, {&here, &join.facts}};
    if (const std::string table = world_differences(both); !table.empty()) return "the nodes differ:\n" + table;
  }
  return {};
}

Rendezvous::Slot Rendezvous::enroll(Peer peer, const Join& join, TimePoint now) {
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
  changed();
  refusals_.erase(join.host);
  forget_at_.reset();
  deserted_ = false;
  if (join.former && !formed_once_) {  // neither round numbers nor used-up restarts go back
    round_ = std::max(round_, Round{join.former->round.value() + 1});
    restart_count_ = std::max(restart_count_, join.former->restart_count);
    restarts_.assign(static_cast<std::size_t>(std::clamp(restart_count_, 0, terms_->max_restarts)), now);
    membership_changes_ = std::max(membership_changes_, join.former->membership_changes + 1);
  }
  if (slot_of_node_.empty() && phase_ == Phase::gathering) gather(now);

  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<Slot>(members_.size()));
    members_.emplace_back();
  }
  const Slot slot = free_slots_.back();
  free_slots_.pop_back();
  Member& member = members_[slot];
  member = Member{.join = join, .life = member.life + 1, .seniority = next_seniority_++};
  slot_of_node_.emplace(join.node.value(), slot);
  slots_of_host_.emplace(join.host, slot);
  bind(slot, peer, now);

  if (const auto losses = losses_of_host_.find(join.host); losses != losses_of_host_.end()) {
    auto& times = losses->second;
    while (!times.empty() && times.front() + settings_.loss_window <= now) times.pop_front();
    if (static_cast<int>(times.size()) >= settings_.losses_max) {
      member.aside = true;
      checks_.push({times.front() + settings_.loss_window, slot, member.life});
      note(NodePutAside{join.host, static_cast<int>(times.size())});
    }
  }
  count(member, 1);
  arm_roster();
  if (!member.in_process) {
    member.check_at = due(member);
    checks_.push({member.check_at, slot, member.life});
  }
  note(NodeJoined{join.host, join.local_world_size, member_count()});
  return slot;
}

void Rendezvous::bind(Slot slot, Peer peer, TimePoint now) {
  Member& member = members_[slot];
  if (member.peer && *member.peer != peer) connections_[member.peer->value()].member.reset();
  Connection& connection = connections_.at(peer.value());
  if (connection.member && *connection.member != slot) lose(*connection.member, "starts anew", now);
  connection.member = slot;
  member.peer = peer;
  member.connection = connection.number;
  if (member.observed != connection.observed) changed();
  member.observed = connection.observed;
  member.in_process = connection.in_process;
  member.alive_at = now;
  member.cut_until.reset();
  if (blocker_ == slot) blocker_.reset();
  if (!std::exchange(member.back_by, {})) return;
  deserted_ = false;
  member.check_at = due(member);
  checks_.push({member.check_at, slot, member.life});
  if (--awaited_ == 0) note(AllBack{});
}

void Rendezvous::count(const Member& member, int by) {
  if (member.stage == Stage::stopping) stopping_ += by;
  if (member.stage == Stage::ready) (member.aside ? aside_ : ready_) += by;
}

void Rendezvous::set_stage(Slot slot, Stage stage) {
  Member& member = members_[slot];
  if (member.stage != stage) changed();
  count(member, -1);
  member.stage = stage;
  count(member, 1);
  arm_roster();
}

void Rendezvous::remove(Slot slot) {
  Member& member = members_[slot];
  count(member, -1);
  if (member.peer) connections_[member.peer->value()].member.reset();
  slot_of_node_.erase(member.join.node.value());
  const auto [begin, end] = slots_of_host_.equal_range(member.join.host);
  slots_of_host_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == slot; }));
  if (blocker_ == slot) blocker_.reset();
  if (member.back_by) --awaited_;
  changed();
  member = Member{.life = member.life + 1};
  free_slots_.push_back(slot);
  arm_roster();
}

void Rendezvous::lose(Slot slot, const std::string& reason, TimePoint now) {
  const std::string host = members_[slot].join.host;
  const Stage stage = members_[slot].stage;
  const TimePoint alive_at = members_[slot].alive_at;
  if (!slept_until_ || now > *slept_until_ + terms_->lease) {  // else it is we who were away, and it gave us up
    auto& losses = losses_of_host_[host];
    losses.push_back(now);
    if (static_cast<int>(losses.size()) > settings_.losses_max) losses.pop_front();
  }
  note(NodeLost{host, reason});

  if (stage == Stage::seated || stage == Stage::finished) std::erase(seats_, slot);
  const bool was_hosting = phase_ == Phase::hosting;
  remove(slot);
  if (stage == Stage::seated) {
    if (!was_hosting) ++membership_changes_;
    stop_round(StopCause::membership_change, "node " + host + " " + reason, now);
  } else if (phase_ == Phase::gathering && counted_failure_at_ && alive_at <= *counted_failure_at_) {
    // It was gone before the failure that we counted: that one was collateral.
    --restart_count_;
    restarts_.pop_back();
    ++membership_changes_;
    counted_failure_at_.reset();
    note(RestartGivenBack{host});
  }
  if (slot_of_node_.empty()) {
    gather_until_.reset();
    last_call_until_.reset();
    forget_at_ = deserted_ ? now : now + terms_->join_timeout;
    if (!formed_once_) terms_.reset();
  }
}

void Rendezvous::expel(Slot slot, const std::string& reason, TimePoint now) {
  tell(members_[slot], StopWorkers{round_, StopCause::fenced, reason});
  lose(slot, reason, now);
}

/// A node that starts again takes its old place at once; its former life may be silent for long yet.
void Rendezvous::replace_silent(const Join& join, TimePoint now) {
  const auto [begin, end] = slots_of_host_.equal_range(join.host);
  const auto old = std::find_if(begin, end, [&](const auto& entry) {
    return silent(members_[entry.second], now) && members_[entry.second].join.group_rank == join.group_rank;
  });
  if (old != end) expel(old->second, "is replaced by a new agent on the same host", now);
}

bool Rendezvous::silent(const Member& member, TimePoint now) const {
  if (member.in_process) return false;
  return !member.peer || now - member.alive_at > terms_->lease * 3 / 10;
}

TimePoint Rendezvous::due(const Member& member) const {
  if (member.back_by) return *member.back_by;
  const TimePoint lease_over = member.alive_at + terms_->lease;
  return member.cut_until ? std::min(lease_over, *member.cut_until) : lease_over;
}

void Rendezvous::expire(TimePoint now) {
  while (!checks_.empty() && checks_.top().at <= now) {
    const Check check = checks_.top();
    checks_.pop();
    Member& member = members_[check.slot];
    if (member.life != check.life) continue;
    if (member.aside && member.check_at != check.at && !member.cut_until && !member.back_by) {
      count(member, -1);
      member.aside = false;
      count(member, 1);
      changed();
      continue;
    }
    const TimePoint at = due(member);
    if (at > now) {
      if (check.at != member.check_at) continue;
      member.check_at = at;
      checks_.push({at, check.slot, member.life});
    } else if (phase_ == Phase::ended) {
      remove(check.slot);
    } else {
      const std::string reason = member.back_by ? "did not come back after the coordinator started again"
                                 : member.cut_until && *member.cut_until <= now
                                     ? "did not come back after its connection broke"
                                     : "was silent for " + seconds(now - member.alive_at);
      expel(check.slot, reason, now);
    }
  }
}

void Rendezvous::grant_leases(TimePoint now) {
  note(CoordinatorSlept{});
  slept_until_ = now;
  for (const auto& [node, slot] : slot_of_node_) {
    Member& member = members_[slot];
    member.alive_at = now;
    if (member.cut_until) member.cut_until = now + terms_->lease;
    if (member.back_by) member.back_by = return_by(now);
  }
}

}  // namespace torchup
