#include "rendezvous/core/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/endpoint.hpp"
#include "rendezvous/core/hostlist.hpp"
#include "rendezvous/core/same_world.hpp"

namespace torchup {
namespace {

std::string seconds(Duration duration) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count() / 100;
  return std::to_string(tenths / 10) + (tenths % 10 == 0 ? "" : "." + std::to_string(tenths % 10)) + " s";
}

std::string describe(const WorkerFailure& failure) {
  std::string text = "rank " + std::to_string(failure.rank.value()) + " on " + failure.host;
  text += failure.exit_code < 0 ? " was ended by signal " + std::to_string(-failure.exit_code)
                                : " exited with " + std::to_string(failure.exit_code);
  return text;
}

std::string nodes_wanted(const JobTerms& terms) {
  std::string text = std::to_string(terms.min_nodes);
  if (terms.max_nodes != terms.min_nodes) text += " to " + std::to_string(terms.max_nodes);
  return text + (terms.max_nodes == 1 ? " node" : " nodes");
}

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
  if (!mine.hostlist.empty() && !job.hostlist.empty() && mine.hostlist != job.hostlist) return say("the host list", mine.hostlist, job.hostlist);
  return {};
}

}  // namespace

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
    case Phase::hosting: consider(store_until_); break;
    case Phase::running: consider(admit_at_); break;
    case Phase::doubting:
      if (!blocker_) consider(doubt_until_);
      break;
    case Phase::restoring: consider(patience_until_); break;
    case Phase::ended: break;
  }
  consider(forget_at_);
  return first;
}

bool Rendezvous::forgettable(TimePoint now) const { return slot_of_node_.empty() && forget_at_ && now >= *forget_at_; }

// ---- events

void Rendezvous::on(const Connected& event, TimePoint) {
  if (connections_.size() <= event.peer.value()) connections_.resize(event.peer.value() + 1);
  connections_[event.peer.value()] = {
      .open = true, .in_process = event.in_process, .member = {}, .observed = event.observed, .number = ++connection_count_};
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
  note("node " + member.join.host + ": the connection broke, it has " + seconds(*member.cut_until - now) + " to come back");
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

  const bool may_restore = phase_ == Phase::restoring || (phase_ == Phase::gathering && !formed_once_);
  if (!may_restore || !resume.placement || (phase_ == Phase::restoring && resume.placement->round != round_) ||
      misfit(resume.join)) {
    const Round round = resume.placement ? resume.placement->round : round_;
    actions_.push_back(Tell{event.peer, StopWorkers{round, StopCause::fenced, "this node was given up while it was silent"}});
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
    note("node " + join.host + " refused: " + *why);
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
  if (!member || !in_round || failed.round != round_ || member->stage != Stage::seated || failed.failures.empty()) return;
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
  const Verdict verdict{.exit_code = leave.exit_code,
                        .reason = leave.reason,
                        .failures = leave.failures,
                        .stop_signal = leave.stop_signal,
                        .kill_now = leave.kill_now};
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
    note("node " + members_[*connection.member].join.host + " ends the job: " + leave.reason);
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

// ---- members

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
      return "--node-rank " + std::to_string(join.group_rank->value()) + " is used twice: by " + join.host + " and by " +
             members_[slot].join.host;
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
      note("node " + join.host + " was lost " + std::to_string(times.size()) + " times lately: put aside");
    }
  }
  count(member, 1);
  arm_roster();
  if (!member.in_process) {
    member.check_at = due(member);
    checks_.push({member.check_at, slot, member.life});
  }
  note("node " + join.host + " joins with " + std::to_string(join.local_world_size) + " workers; nodes: " +
       std::to_string(member_count()));
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
  if (--awaited_ == 0) note("all nodes that are left are back");
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
  auto& losses = losses_of_host_[host];
  losses.push_back(now);
  if (static_cast<int>(losses.size()) > settings_.losses_max) losses.pop_front();
  note("node " + host + " " + reason);

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
    note("the restart is not counted: node " + host + " was lost before the failure");
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

// ---- rounds

void Rendezvous::advance(TimePoint now) {
  expire(now);
  switch (phase_) {
    case Phase::gathering:
      try_form(now);
      if (phase_ == Phase::gathering) tell_roster(now);
      break;
    case Phase::hosting:
      if (now >= *store_until_) expel(seats_.front(), "did not open the worker store in time", now);
      break;
    case Phase::running: try_admit(now); break;
    case Phase::doubting: decide_failure(now); break;
    case Phase::restoring:
      if (now >= *patience_until_) {
        ++membership_changes_;
        stop_round(StopCause::membership_change,
                   std::to_string(seats_.size()) + " of " + std::to_string(group_world_size_) +
                       " nodes came back to the coordinator within " + seconds(settings_.patience),
                   now);
      }
      break;
    case Phase::ended: break;
  }
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

bool Rendezvous::all_expected() const {
  if (expected_hosts_.empty() || static_cast<std::size_t>(ready_) < expected_hosts_.size()) return false;
  return std::all_of(expected_hosts_.begin(), expected_hosts_.end(),
                     [&](const std::string& host) { return slots_of_host_.contains(host); });
}

void Rendezvous::try_form(TimePoint now) {
  if (ready_ + aside_ + stopping_ == 0) return;
  int size = round_size(*terms_, ready_);
  if (size == 0) size = round_size(*terms_, ready_ + aside_);
  const bool out_of_time = gather_until_ && now >= *gather_until_;
  if (size == 0) {
    if (last_call_until_) changed();
    last_call_until_.reset();
    if (out_of_time) {
      end({.exit_code = 66,
           .reason = "too few nodes within the join timeout of " + seconds(terms_->join_timeout) + ": " + roster(now)},
          now);
    }
    return;
  }
  if (stopping_ > 0) {
    if (!out_of_time) return;
    std::vector<Slot> late;
    for (const auto& [node, slot] : slot_of_node_) {
      if (members_[slot].stage == Stage::stopping) late.push_back(slot);
    }
    for (const Slot slot : late) expel(slot, "did not stop its workers within the join timeout", now);
    return try_form(now);
  }
  const int largest = terms_->max_nodes - terms_->max_nodes % terms_->nodes_multiple_of;
  if (!formed_once_ && size < largest && !all_expected() && !out_of_time) {
    if (!last_call_until_) {
      last_call_until_ = now + terms_->last_call;
      changed();
    }
    if (now < *last_call_until_) return;
  }
  if (leave_until_ && now < *leave_until_) return;
  if (blocker_) return;
  form(size, now);
}

void Rendezvous::form(int size, TimePoint now) {
  std::vector<Slot> chosen;
  for (const auto& [node, slot] : slot_of_node_) {
    if (members_[slot].stage == Stage::ready) chosen.push_back(slot);
  }
  std::sort(chosen.begin(), chosen.end(), [&](Slot left, Slot right) {
    const Member &a = members_[left], &b = members_[right];
    return std::pair{a.aside, a.seniority} < std::pair{b.aside, b.seniority};
  });
  chosen.resize(static_cast<std::size_t>(size));
  const auto quiet =
      std::find_if(chosen.begin(), chosen.end(), [&](Slot slot) { return silent(members_[slot], now); });
  if (quiet != chosen.end()) {
    blocker_ = *quiet;
    return;
  }

  std::vector<Candidate> candidates;
  candidates.reserve(chosen.size());
  for (const Slot slot : chosen) candidates.push_back({&members_[slot].join, members_[slot].seniority});
  const Seating seating = seat(candidates, terms_->rank_order, expected_hosts_);
  seats_.clear();
  for (std::size_t group_rank = 0; group_rank < seating.order.size(); ++group_rank) {
    const Slot slot = chosen[seating.order[group_rank]];
    members_[slot].seat = seating.seats[group_rank];
    set_stage(slot, Stage::seated);
    seats_.push_back(slot);
  }
  group_world_size_ = size;
  world_size_ = seating.world_size;
  unfinished_ = size;
  finished_ = 0;
  failures_.clear();
  may_restart_ = true;
  counted_failure_at_.reset();
  gather_until_.reset();
  last_call_until_.reset();
  leave_until_.reset();
  roster_at_.reset();
  last_roster_.clear();

  if (terms_->same_world == SameWorld::warn) {
    std::vector<HostFacts> hosts;
    for (const Slot slot : seats_) hosts.push_back({&members_[slot].join.host, &members_[slot].join.facts});
    if (const std::string table = world_differences(hosts); !table.empty()) {
      note("the nodes differ:\n" + table);
      for (const Slot slot : seats_) tell(members_[slot], Waiting{"warning: the nodes differ:\n" + table});
    }
  }
  phase_ = Phase::hosting;
  store_until_ = now + settings_.store_limit;
  note("round " + std::to_string(round_.value()) + ": " + std::to_string(size) + " nodes, " +
       std::to_string(world_size_) + " workers; " + members_[seats_.front()].join.host + " opens the worker store");
  tell(members_[seats_.front()], HostStore{round_});
}

void Rendezvous::begin_running(TimePoint) {
  changed();
  phase_ = Phase::running;
  formed_once_ = true;
  store_until_.reset();
  admit_at_.reset();
  master_addr_ = master_address();
  actions_.reserve(actions_.size() + seats_.size());
  for (const Slot slot : seats_) tell(members_[slot], placed(members_[slot]));
}

Placed Rendezvous::placed(const Member& member) const {
  return {{.round = round_,
           .group_rank = member.seat.group_rank,
           .group_world_size = group_world_size_,
           .first_rank = member.seat.first_rank,
           .world_size = world_size_,
           .first_role_rank = member.seat.first_role_rank,
           .role_world_size = member.seat.role_world_size,
           .master_addr = master_addr_,
           .master_port = master_port_,
           .restart_count = restart_count_,
           .membership_changes = membership_changes_}};
}

/// Where group rank 0 is reached: what it demands; else where we see it, if it knows that address as its own. An agent
/// that we see on loopback shares our machine: the others reach it where they reach us.
std::string Rendezvous::master_address() const {
  const Member& first = members_[seats_.front()];
  const auto& addresses = first.join.addresses;
  if (first.join.address_demanded && !addresses.empty()) return addresses.front();
  const bool near = first.observed.empty() || is_loopback(first.observed);
  const bool all_near = std::all_of(seats_.begin(), seats_.end(), [&](Slot slot) {
    return members_[slot].observed.empty() || is_loopback(members_[slot].observed);
  });
  if (near && all_near) return first.observed.empty() ? "127.0.0.1" : first.observed;
  const std::string& seen = near ? coordinator_address_ : first.observed;
  const bool own = addresses.empty() || std::find(addresses.begin(), addresses.end(), seen) != addresses.end();
  return !seen.empty() && own ? seen : addresses.empty() ? "127.0.0.1" : addresses.front();
}

void Rendezvous::try_admit(TimePoint now) {
  const bool room = ready_ > 0 && finished_ == 0 && round_size(*terms_, group_world_size_ + ready_) > group_world_size_;
  if (!room) return admit_at_.reset();
  if (!admit_at_) admit_at_ = now + settings_.newcomer_window;
  if (now < *admit_at_) return;
  std::vector<std::string> names;
  for (const auto& [node, slot] : slot_of_node_) {
    if (members_[slot].stage == Stage::ready && !members_[slot].aside) names.push_back(members_[slot].join.host);
  }
  std::sort(names.begin(), names.end(), natural_less);
  ++membership_changes_;
  stop_round(StopCause::membership_change, "joining: " + join_names(names), now);
}

void Rendezvous::decide_failure(TimePoint now) {
  if (blocker_ || now < *doubt_until_) return;
  // A silent member may be the cause; its lease, or its next sign of life, will tell.
  for (const Slot slot : seats_) {
    if (!silent(members_[slot], now)) continue;
    blocker_ = slot;
    note("a worker failed while node " + members_[slot].join.host + " is silent: is that the cause?");
    return;
  }
  const std::string cause = describe(failures_.front());
  const TimePoint failed_at = *doubt_until_ - settings_.doubt;
  if (terms_->restart_window > Duration{0}) {
    std::erase_if(restarts_, [&](TimePoint at) { return at + terms_->restart_window <= now; });
  }
  if (may_restart_ && restarts_.size() < static_cast<std::size_t>(terms_->max_restarts)) {
    ++restart_count_;
    restarts_.push_back(now);
    stop_round(StopCause::worker_failure,
               cause + "; restart " + std::to_string(restarts_.size()) + " of " + std::to_string(terms_->max_restarts), now);
    counted_failure_at_ = failed_at;
    return;
  }
  std::string reason = cause;
  if (!may_restart_) reason += "; another attempt cannot do better";
  if (may_restart_ && terms_->max_restarts > 0) {
    reason += "; all " + std::to_string(terms_->max_restarts) + " restarts are used up";
  }
  end({.exit_code = 1, .reason = std::move(reason), .failures = std::move(failures_)}, now);
}

void Rendezvous::stop_round(StopCause cause, const std::string& reason, TimePoint now) {
  changed();
  note("round " + std::to_string(round_.value()) + " ends: " + reason);
  actions_.reserve(actions_.size() + seats_.size());
  for (const Slot slot : seats_) {
    if (phase_ == Phase::hosting) {
      set_stage(slot, Stage::ready);  // nobody but the store's host was told of this round
    } else {
      tell(members_[slot], StopWorkers{round_, cause, reason});
      set_stage(slot, Stage::stopping);
    }
  }
  seats_.clear();
  failures_.clear();
  round_ = Round{round_.value() + 1};
  phase_ = Phase::gathering;
  store_until_.reset();
  admit_at_.reset();
  patience_until_.reset();
  blocker_.reset();
  counted_failure_at_.reset();
  gather(now);
}

void Rendezvous::gather(TimePoint now) {
  gathering_since_ = now;
  gather_until_ = now + terms_->join_timeout;
  last_call_until_.reset();
  last_roster_.clear();
  roster_told_at_ = now;
  arm_roster();
}

void Rendezvous::end(Verdict verdict, TimePoint now) {
  changed();
  note("the job ends with " + std::to_string(verdict.exit_code) + ": " + verdict.reason);
  phase_ = Phase::ended;
  verdict_ = std::move(verdict);
  forget_at_ = now + settings_.verdict_kept;
  for (const auto& [node, slot] : slot_of_node_) tell(members_[slot], End{*verdict_});
}

void Rendezvous::grant_leases(TimePoint now) {
  note("the coordinator was asleep: all agents get a new lease");
  for (const auto& [node, slot] : slot_of_node_) {
    Member& member = members_[slot];
    member.alive_at = now;
    if (member.cut_until) member.cut_until = now + terms_->lease;
    if (member.back_by) member.back_by = return_by(now);
  }
}

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
    case Phase::ended: return;
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
  note("round " + std::to_string(round_.value()) + " goes on: all " + std::to_string(group_world_size_) + " nodes are back");
  changed();
  patience_until_.reset();
  phase_ = Phase::running;
  if (unfinished_ == 0) return end({.exit_code = 0, .reason = "all workers exited 0"}, now);
  if (failures_.empty()) return;
  phase_ = Phase::doubting;
  doubt_until_ = now + settings_.doubt;
}

/// The snapshot that we come from was older than what was told to the agents: its file could not be written.
void Rendezvous::catch_up(const Resume& resume, TimePoint now) {
  note("node " + resume.join.host + " tells of round " + std::to_string(resume.placement->round.value()) +
       ", which the saved state knows nothing of");
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
    : settings_{settings},
      next_seniority_{saved.next_seniority},
      coordinator_address_{saved.coordinator_address},
      terms_{saved.terms},
      facts_{saved.facts},
      phase_{saved.phase},
      round_{saved.round},
      formed_once_{saved.formed_once},
      restart_count_{saved.restart_count},
      membership_changes_{saved.membership_changes},
      group_world_size_{saved.group_world_size},
      world_size_{saved.world_size},
      master_addr_{saved.master_addr},
      master_port_{saved.master_port},
      gathering_since_{now},
      roster_told_at_{now},
      now_{now},
      verdict_{saved.verdict} {
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
  if (awaited_ > 0) note("restored in round " + std::to_string(round_.value()) + "; nodes that are awaited: " + std::to_string(awaited_));
}

TimePoint Rendezvous::return_by(TimePoint now) const { return now + std::max(settings_.return_limit, terms_->lease); }

// ---- what people see

std::string Rendezvous::roster(TimePoint now) const {
  if (!terms_) return "no node yet";
  std::vector<std::string> here, stopping, quiet, missing, refused;
  for (const auto& [node, slot] : slot_of_node_) {
    const Member& member = members_[slot];
    const auto& host = member.join.host;
    if (silent(member, now)) {
      quiet.push_back(host + " (for " + seconds(now - member.alive_at) + ")");
    } else {
      (member.stage == Stage::stopping ? stopping : here).push_back(host);
    }
  }
  for (const std::string& host : expected_hosts_) {
    if (!slots_of_host_.contains(host) && !refusals_.contains(host)) missing.push_back(host);
  }
  for (const auto& [host, why] : refusals_) refused.push_back(host + " (" + why.substr(0, why.find('\n')) + ")");
  for (auto* names : {&here, &stopping, &quiet}) std::sort(names->begin(), names->end(), natural_less);
  std::string text = std::to_string(here.size()) + " of " + nodes_wanted(*terms_);
  if (!here.empty()) text += ": " + join_names(here);
  if (!stopping.empty()) text += "; stopping their workers: " + join_names(stopping);
  if (!quiet.empty()) text += "; silent: " + join_names(quiet);
  if (!refused.empty()) text += "; refused: " + join_names(refused);
  if (!missing.empty()) text += "; not heard of: " + join_names(missing);
  return text;
}

JobView Rendezvous::view(TimePoint now) const {
  static constexpr const char* phases[] = {"gathering", "hosting", "running", "doubting", "restoring", "ended"};
  static constexpr const char* stages[] = {"ready", "seated", "finished", "stopping"};
  const bool has_round = phase_ != Phase::gathering && phase_ != Phase::ended;
  const bool runs = has_round && phase_ != Phase::hosting;
  JobView view{.phase = phases[static_cast<std::size_t>(phase_)],
               .round = round_,
               .min_nodes = terms_ ? terms_->min_nodes : 0,
               .max_nodes = terms_ ? terms_->max_nodes : 0,
               .restart_count = restart_count_,
               .membership_changes = membership_changes_,
               .world_size = has_round ? world_size_ : 0,
               .master = runs ? to_string(Endpoint{master_addr_, master_port_}) : std::string{},
               .waits_for = phase_ == Phase::gathering || awaited_ > 0 ? roster(now) : std::string{},
               .last = last_note_,
               .verdict = verdict_};
  for (const auto& [node, slot] : slot_of_node_) {
    const Member& member = members_[slot];
    const bool in_round = member.stage == Stage::seated || member.stage == Stage::finished;
    const bool quiet = silent(member, now);
    auto& row = view.nodes.emplace_back(JobView::Node{.host = member.join.host, .local_world_size = member.join.local_world_size});
    row.state = stages[static_cast<std::size_t>(member.stage)];
    if (member.stage == Stage::ready && runs) row.state = "standby";
    if (member.aside) row.state = "aside";
    if (quiet) row.state = "silent";
    if (quiet) row.reason = "for " + seconds(now - member.alive_at);
    if (in_round) row.group_rank = member.seat.group_rank;
  }
  for (const auto& [host, why] : refusals_) view.nodes.push_back({.host = host, .state = "refused", .reason = why});
  for (const std::string& host : expected_hosts_) {
    if (!slots_of_host_.contains(host) && !refusals_.contains(host)) view.nodes.push_back({.host = host, .state = "missing"});
  }
  std::sort(view.nodes.begin(), view.nodes.end(),
            [](const auto& left, const auto& right) { return natural_less(left.host, right.host); });
  return view;
}

void Rendezvous::arm_roster() {
  if (phase_ != Phase::gathering || roster_at_) return;
  // The line goes to every member: the more there are, the less often it may change.
  roster_at_ = roster_told_at_ + settings_.roster_interval * (1 + member_count() / 1000);
}

void Rendezvous::tell_roster(TimePoint now) {
  if (!roster_at_ || now < *roster_at_) return;
  roster_at_.reset();
  roster_told_at_ = now;
  std::string text = roster(now);
  if (text == last_roster_) return;
  for (const auto& [node, slot] : slot_of_node_) {
    if (members_[slot].stage == Stage::ready) tell(members_[slot], Waiting{text});
  }
  note("waiting: " + text);
  last_roster_ = std::move(text);
}

void Rendezvous::tell(const Member& member, CoordinatorMessage message) {
  if (member.peer) actions_.push_back(Tell{*member.peer, std::move(message)});
}

void Rendezvous::note(std::string text) {
  last_note_ = text;
  actions_.push_back(Note{std::move(text)});
}

}  // namespace torchup
