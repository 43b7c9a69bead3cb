// The round machine: how rounds form, run and end.
#include "rendezvous/core/round/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/core/membership/same_world.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/names.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

std::string describe(const WorkerFailure& failure) {
  const std::string rank = fmt::format("rank {} on {}", failure.rank.value(), failure.host);
  if (failure.exit_code >= 0) return fmt::format("{} exited with {}", rank, failure.exit_code);
  return fmt::format("{} was ended by signal {}", rank, -std::int64_t{failure.exit_code});
}

/// How a job ends that is not to begin without nodes on which no worker can run: as the first of them says.
int code_without_missed(const Membership& members) {
  const Member* first = nullptr;
  for (const auto& [node, slot] : members.slots()) {
    const Member& member = members.at(slot);
    const bool missed = member.stage == Member::Stage::ready && member.is_missed();
    if (missed && (!first || member.seniority < first->seniority)) first = &member;
  }
  return first ? first->join->needed_code : exit_code::too_few;
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
      if (now < *patience_until_) break;
      count_change();
      stop_round(StopCause::membership_change,
                 fmt::format("{} of {} nodes came back to the coordinator within {}", seats_.size(), group_world_size_,
                             seconds(patience(terms_))),
                 now);
      break;
    case Phase::ended:
      break;
  }
}

bool Rendezvous::all_expected() const {
  const int here = members_.ready() + members_.drained();
  if (foretold_ && here >= *foretold_) return true;
  if (expected_hosts_.empty() || static_cast<std::size_t>(here) < expected_hosts_.size()) return false;
  return std::all_of(expected_hosts_.begin(), expected_hosts_.end(),
                     [&](const std::string& host) { return members_.has_host(host); });
}

/// Nobody is to come who could make up for those that are unfit.
bool Rendezvous::all_have_spoken() const {
  if (members_.unfit() == 0 || members_.stopping() > 0) return false;
  if (expected_hosts_.empty()) return member_count() >= range().max_nodes;
  return std::ranges::all_of(expected_hosts_, [&](const std::string& host) { return members_.has_host(host); });
}

void Rendezvous::end_for_too_few(TimePoint now) {
  if (may_not_begin()) {
    const std::string reason = "a node that the job needs is unfit: " + roster(now);
    return end({.exit_code = code_without_missed(members_), .reason = reason}, now);
  }
  const int there = members_.ready() + members_.aside();
  if (round_size(there + members_.unfit()) > 0) {
    return end({.exit_code = unfit_code, .reason = "too few nodes are fit: " + roster(now)}, now);
  }
  end({.exit_code = exit_code::too_few,
       .reason = "too few nodes within the join timeout of " + seconds(terms_->join_timeout) + ": " + roster(now)},
      now);
}

/// There is a node without which there is to be no job, and on which no worker can run. One that has begun has done so
/// without it.
bool Rendezvous::may_not_begin() const { return !has_begun() && members_.missed() > 0; }

/// A round has run, by what agents tell where we remember none.
bool Rendezvous::has_begun() const { return formed_once_ || (learning_ && told_round_); }

void Rendezvous::try_form(TimePoint now) {
  const int waiting = members_.ready() + members_.aside() + members_.unfit() + members_.drained();
  if (waiting + members_.stopping() == 0) return;
  if (others_may_come_back(now)) return;
  int size = round_size(members_.ready());
  if (size == 0) size = round_size(members_.ready() + members_.aside());
  if (may_not_begin()) size = 0;
  const bool out_of_time = gather_until_ && now >= *gather_until_;
  if (size == 0) {
    if (last_call_until_) changed();
    last_call_until_.reset();
    if (out_of_time || all_have_spoken()) end_for_too_few(now);
    return;
  }
  if (members_.stopping() > 0) {
    if (!out_of_time) return;
    std::vector<Slot> late;
    for (const auto& [node, slot] : members_.slots()) {
      if (members_.at(slot).stage != Stage::stopping) continue;
      if (kept_until(slot, now)) return;
      late.push_back(slot);
    }
    for (const Slot slot : late) expel(slot, "did not stop its workers within the join timeout", now);
    return try_form(now);
  }
  const int largest = round_size(range().max_nodes);
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
  for (const auto& [node, slot] : members_.slots()) {
    if (members_.at(slot).stage == Stage::ready && members_.at(slot).is_candidate()) chosen.push_back(slot);
  }
  std::ranges::sort(chosen, {}, [&](Slot slot) { return turn_of(members_.at(slot)); });
  chosen.resize(static_cast<std::size_t>(size));
  const auto quiet =
      std::find_if(chosen.begin(), chosen.end(), [&](Slot slot) { return members_.silent(members_.at(slot), now); });
  if (quiet != chosen.end()) {
    blocker_ = *quiet;
    return;
  }

  std::vector<Candidate> candidates;
  candidates.reserve(chosen.size());
  for (const Slot slot : chosen) candidates.push_back({&*members_.at(slot).join, members_.at(slot).seniority});
  const Seating seating = seat(candidates, terms_->rank_order, expected_hosts_);
  seats_.clear();
  for (std::size_t group_rank = 0; group_rank < seating.order.size(); ++group_rank) {
    const Slot slot = chosen[seating.order[group_rank]];
    members_.at(slot).seat = seating.seats[group_rank];
    set_stage(slot, Stage::seated);
    seats_.push_back(slot);
  }
  group_world_size_ = size;
  world_size_ = seating.world_size;
  unfinished_ = size;
  finished_ = 0;
  failures_.clear();
  failed_.clear();
  may_restart_ = true;
  planned_ = false;
  counted_failure_at_.reset();
  gather_until_.reset();
  last_call_until_.reset();
  leave_until_.reset();
  roster_at_.reset();
  last_roster_.clear();

  learning_ = false;
  patience_until_.reset();
  told_round_.reset();

  if (terms_->same_world == SameWorld::warn) tell_differences();
  phase_ = Phase::hosting;
  store_until_ = now + settings_.store_limit;
  note(RoundFormed{round_, size, world_size_, members_.at(seats_.front()).join->host});
  tell(members_.at(seats_.front()), HostStore{round_});
}

void Rendezvous::tell_differences() {
  std::vector<HostFacts> hosts;
  for (const Slot slot : seats_) hosts.push_back({&members_.at(slot).join->host, &members_.at(slot).join->facts});
  const std::string table = world_differences(hosts);
  if (table.empty()) return;
  const std::string_view start = cut_text(table, differences_told_bytes_max);
  const std::string told =
      fmt::format("warning: the nodes differ: {}{}", start, start.size() < table.size() ? "…" : "");
  note(NodesDiffer{table});
  for (const Slot slot : seats_) tell(members_.at(slot), Waiting{told});
}

void Rendezvous::begin_running() {
  changed();
  phase_ = Phase::running;
  formed_once_ = true;
  store_until_.reset();
  admit_at_.reset();
  master_addr_ = master_address();
  actions_.reserve(actions_.size() + seats_.size());
  for (const Slot slot : seats_) {
    members_.at(slot).round = round_;
    tell(members_.at(slot), placed(members_.at(slot)));
  }
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
           .restart_count = restarts_.count(),
           .membership_changes = membership_changes_,
           .store_key = store_key_}};
}

/// Where group rank 0 is reached: what it demands; else where we see it, if it knows that address as its own. An agent
/// that we see on loopback shares our machine: the others of the round reach it where they reached us.
std::string Rendezvous::master_address() const {
  const Member& first = members_.at(seats_.front());
  const auto& addresses = first.join->addresses;
  if (first.join->address_demanded && !addresses.empty()) return addresses.front();
  const bool near = first.observed.empty() || is_loopback(first.observed);
  const bool all_near = std::all_of(seats_.begin(), seats_.end(), [&](Slot slot) {
    return members_.at(slot).observed.empty() || is_loopback(members_.at(slot).observed);
  });
  if (near && all_near) return first.observed.empty() ? "127.0.0.1" : first.observed;
  const std::string& seen = near ? way_of_others(addresses) : first.observed;
  const bool own = addresses.empty() || std::find(addresses.begin(), addresses.end(), seen) != addresses.end();
  return !seen.empty() && own ? seen : addresses.empty() ? "127.0.0.1" : addresses.front();
}

/// The first way of theirs that is one of `addresses`, where there is one. Where none of them is back since we began
/// anew: the one that was saved.
const std::string& Rendezvous::way_of_others(const std::vector<std::string>& addresses) const {
  const std::string* first = nullptr;
  for (const Slot slot : seats_) {
    const Member& member = members_.at(slot);
    const bool near = member.observed.empty() || is_loopback(member.observed);
    if (near || member.reached.empty()) continue;
    if (std::ranges::find(addresses, member.reached) != addresses.end()) return member.reached;
    if (!first) first = &member.reached;
  }
  return first ? *first : coordinator_address_;
}

/// Hosts of the members that may have a place, and are heard.
std::vector<std::string> Rendezvous::admissible(TimePoint now) const {
  std::vector<std::string> names;
  for (const auto& [node, slot] : members_.slots()) {
    const Member& member = members_.at(slot);
    if (member.stage == Stage::ready && member.is_candidate() && !member.aside && !members_.silent(member, now)) {
      names.push_back(member.join->host);
    }
  }
  return names;
}

void Rendezvous::try_admit(TimePoint now) {
  const int ready = members_.ready();
  const bool room = ready > 0 && finished_ == 0 && round_size(group_world_size_ + ready) > group_world_size_;
  if (!room) return admit_at_.reset();
  if (!admit_at_) admit_at_ = now + settings_.newcomer_window;
  if (now < *admit_at_) return;
  std::vector<std::string> names = admissible(now);
  // Who is silent may be gone: for its sake nobody stops.
  if (round_size(group_world_size_ + static_cast<int>(names.size())) <= group_world_size_) {
    admit_at_ = now + settings_.newcomer_window;
    return;
  }
  std::sort(names.begin(), names.end(), natural_less);
  count_change();
  stop_round(StopCause::membership_change, "joining: " + join_names(names), now);
}

void Rendezvous::begin_doubt(TimePoint now) {
  phase_ = Phase::doubting;
  blocker_.reset();
  waits_for_cause_ = false;
  doubt_until_ = now + (group_world_size_ > 1 ? settings_.doubt : Duration::zero());
  cause_until_ = now + settings_.cause_patience;
}

/// Whether a node that has told of no failure may yet tell of the one that the others died of.
bool Rendezvous::cause_may_come() const {
  if (!std::ranges::all_of(failures_, &WorkerFailure::consequence)) return false;
  return std::ranges::any_of(
      seats_, [&](Slot slot) { return members_.at(slot).stage == Stage::seated && !failed_.contains(slot); });
}

void Rendezvous::decide_failure(TimePoint now) {
  if (blocker_ || now < *doubt_until_) return;
  const bool ends = !may_restart_ || !restarts_.any_left(*terms_, now);
  waits_for_cause_ = ends && now < *cause_until_ && cause_may_come();
  if (waits_for_cause_) return;
  // A silent member may be the cause; its lease, or its next sign of life, will tell.
  for (const Slot slot : seats_) {
    if (!members_.silent(members_.at(slot), now)) continue;
    blocker_ = slot;
    note(FailureInDoubt{members_.at(slot).join->host});
    return;
  }
  const auto root = failures_.begin() + static_cast<std::ptrdiff_t>(root_cause(failures_));
  std::rotate(failures_.begin(), root, root + 1);
  const std::string cause = describe(failures_.front());
  const TimePoint failed_at = *doubt_until_ - settings_.doubt;
  const Round failed_in = round_;
  if (!ends && restarts_.spend(*terms_, now)) {
    stop_round(StopCause::worker_failure,
               fmt::format("{}; restart {} of {}", cause, restarts_.used(*terms_, now), terms_->max_restarts), now);
    counted_failure_at_ = failed_at;
    counted_failure_in_ = failed_in;
    return;
  }
  std::string reason = cause;
  if (!may_restart_) reason += "; another attempt cannot do better";
  if (may_restart_ && terms_->max_restarts > 0) {
    reason += fmt::format("; all {} restarts are used up", terms_->max_restarts);
  }
  end({.exit_code = 1, .reason = std::move(reason), .failures = std::move(failures_)}, now);
}

void Rendezvous::stop_round(StopCause cause, const std::string& reason, TimePoint now) {
  changed();
  note(RoundStopped{round_, cause, reason});
  const std::string told{cut_text(reason, stop_told_bytes_max)};
  const auto left_out = first_left_out();
  actions_.reserve(actions_.size() + seats_.size());
  for (const Slot slot : seats_) {
    if (phase_ == Phase::hosting) {
      set_stage(slot, Stage::ready);  // nobody but the store's host was told of this round
    } else {
      const Member& member = members_.at(slot);
      const bool stands_by = member.drained || (left_out && turn_of(member) >= *left_out);
      tell(member, StopWorkers{round_, cause, told, planned_, stands_by});
      set_stage(slot, Stage::stopping);
    }
  }
  seats_.clear();
  failures_.clear();
  failed_.clear();
  round_ = std::max(Round{round_.value() + 1}, next_round_);
  phase_ = Phase::gathering;
  store_until_.reset();
  admit_at_.reset();
  blocker_.reset();
  counted_failure_at_.reset();
  gather(now);
}

void Rendezvous::count_change() { membership_changes_ = std::min(membership_changes_ + 1, membership_changes_max); }

void Rendezvous::gather(TimePoint now) {
  gather_until_ = now + terms_->join_timeout;
  if (patience_until_) gather_until_ = std::max(*gather_until_, *patience_until_);
  last_call_until_.reset();
  last_roster_.clear();
  roster_told_at_ = now;
  arm_roster();
}

}  // namespace torchup
