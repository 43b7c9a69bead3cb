// The round machine: how rounds form, run and end.
#include "rendezvous/core/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/endpoint.hpp"
#include "rendezvous/core/same_world.hpp"
#include "rendezvous/core/wording.hpp"

namespace torchup {
namespace {

std::string describe(const WorkerFailure& failure) {
  std::string text = "rank " + std::to_string(failure.rank.value()) + " on " + failure.host;
  text += failure.exit_code < 0 ? " was ended by signal " + std::to_string(-failure.exit_code)
                                : " exited with " + std::to_string(failure.exit_code);
  return text;
}

}  // namespace

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
    case Phase::running:
      try_admit(now);
      break;
    case Phase::doubting:
      decide_failure(now);
      break;
    case Phase::restoring:
      if (now >= *patience_until_) {
        ++membership_changes_;
        stop_round(StopCause::membership_change,
                   std::to_string(seats_.size()) + " of " + std::to_string(group_world_size_) +
                       " nodes came back to the coordinator within " + seconds(settings_.patience),
                   now);
      }
      break;
    case Phase::ended:
      break;
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
  const auto quiet = std::find_if(chosen.begin(), chosen.end(), [&](Slot slot) { return silent(members_[slot], now); });
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
      note(NodesDiffer{table});
      for (const Slot slot : seats_) tell(members_[slot], Waiting{"warning: the nodes differ:\n" + table});
    }
  }
  phase_ = Phase::hosting;
  store_until_ = now + settings_.store_limit;
  note(RoundFormed{round_, size, world_size_, members_[seats_.front()].join.host});
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
    note(FailureInDoubt{members_[slot].join.host});
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
               cause + "; restart " + std::to_string(restarts_.size()) + " of " + std::to_string(terms_->max_restarts),
               now);
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
  note(RoundStopped{round_, cause, reason});
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
  note(JobConcluded{verdict.exit_code, verdict.reason});
  phase_ = Phase::ended;
  verdict_ = std::move(verdict);
  forget_at_ = now + settings_.verdict_kept;
  for (const auto& [node, slot] : slot_of_node_) tell(members_[slot], End{*verdict_});
}

}  // namespace torchup
