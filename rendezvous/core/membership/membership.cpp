#include "rendezvous/core/membership/membership.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/core/link/message_bytes.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {

// ---- connections

void Membership::open(Peer peer, std::string observed, std::string reached, bool in_process) {
  if (connections_.size() <= peer.value()) connections_.resize(peer.value() + std::size_t{1});
  connections_[peer.value()] = {.open = true,
                                .in_process = in_process,
                                .observed = std::move(observed),
                                .reached = std::move(reached),
                                .number = ++connection_count_};
}

std::optional<Membership::Parting> Membership::close(Peer peer, bool end_of_file, TimePoint now) {
  const Connection closed = std::exchange(connections_.at(peer.value()), {});
  if (closed.ended_job) --leaving_;
  if (!closed.member) return {};
  Member& member = members_[*closed.member];
  member.peer.reset();
  const Duration left = end_of_file ? Duration::zero() : std::max(due(member) - now, Duration::zero());
  return Parting{*closed.member, end_of_file, left};
}

StopWorkers Membership::give_up(Peer peer, const NodeId& node, Round round, std::string why) {
  connection(peer).given_up = node;
  return {round, StopCause::fenced, std::move(why)};
}

Member* Membership::of(Peer peer) {
  const auto slot = connection(peer).member;
  return slot ? &members_[*slot] : nullptr;
}

std::optional<Membership::Slot> Membership::find(Peer peer, const NodeId& node) const {
  const auto own = connection(peer).member;
  if (own && members_[*own].join->node == node) return own;
  const auto known = slot_of_node_.find(node.value());
  return known == slot_of_node_.end() ? std::nullopt : std::optional{known->second};
}

bool Membership::outdated(Peer peer, std::optional<Slot> slot) const {
  return slot && connection(peer).number < members_[*slot].connection;
}

bool Membership::speaks_elsewhere(const Member& member, Peer peer, TimePoint now) const {
  return member.peer && *member.peer != peer && !silent(member, now);
}

std::optional<Membership::Slot> Membership::displaced(Peer peer, std::optional<Slot> slot) const {
  const auto former = connection(peer).member;
  return former != slot ? former : std::nullopt;
}

std::optional<Membership::Slot> Membership::replaced_by(const Join& join, TimePoint now) const {
  const auto [begin, end] = on_host(join.host);
  const auto old = std::find_if(begin, end, [&](const auto& entry) {
    const Member& member = members_[entry.second];
    return silent(member, now) && member.join->group_rank == join.group_rank;
  });
  return old == end ? std::nullopt : std::optional{old->second};
}

// ---- members

Join as_kept(Join join) {
  join.terms = {};
  join.former.reset();
  return join;
}

Membership::Slot Membership::take_slot() {
  if (free_slots_.empty()) {
    members_.emplace_back();
    return static_cast<Slot>(members_.size() - 1);
  }
  const Slot slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void Membership::index(Slot slot) {
  const Member& member = members_[slot];
  slot_of_node_.emplace(member.join->node.value(), slot);
  slots_of_host_.emplace(member.join->host, slot);
  index_rank(slot);
  held_bytes_ += torchup::held_bytes(member.join);
  count(member, 1);
}

void Membership::index_rank(Slot slot) {
  const auto rank = members_[slot].join->group_rank;
  if (rank) slots_of_rank_.emplace(rank->value(), slot);
}

void Membership::forget_rank(Slot slot) {
  const auto rank = members_[slot].join->group_rank;
  if (!rank) return;
  const auto [begin, end] = with_group_rank(*rank);
  slots_of_rank_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == slot; }));
}

Membership::Slot Membership::enroll(Peer peer, const Join& join, TimePoint now) {
  changed();
  const Slot slot = take_slot();
  members_[slot] = Member{.join = as_kept(join), .lease = join.terms.lease, .seniority = next_seniority_++};
  index(slot);
  bind(slot, peer, now);
  put_aside(slot, losses_.aside_until(join.host, now));
  return slot;
}

bool Membership::bind(Slot slot, Peer peer, TimePoint now) {
  Member& member = members_[slot];
  if (member.peer && *member.peer != peer) connections_[member.peer->value()].member.reset();
  Connection& by = connection(peer);
  by.member = slot;
  if (std::exchange(by.ended_job, {})) --leaving_;
  if (member.observed != by.observed) changed();
  member.peer = peer;
  member.connection = by.number;
  member.observed = by.observed;
  member.reached = by.reached;
  member.in_process = by.in_process;
  member.alive_at = now;
  const bool awaited = std::exchange(member.back_by, {}).has_value();
  if (awaited) --awaited_;
  if (member.in_process) {
    check(slot, {});
  } else if (awaited || !member.check_at) {
    check(slot, due(member));
  }
  return awaited;
}

void Membership::update(Slot slot, const Join& join) {
  Member& member = members_[slot];
  member.lease = join.terms.lease;
  const Shared<Join> kept = as_kept(join);
  if (member.join == kept) return;
  held_bytes_ -= torchup::held_bytes(member.join);
  held_bytes_ += torchup::held_bytes(kept);
  count(member, -1);
  forget_rank(slot);
  member.join = kept;
  index_rank(slot);
  count(member, 1);
  changed();
}

void Membership::set_stage(Slot slot, Stage stage) {
  Member& member = members_[slot];
  if (member.stage == stage) return;
  changed();
  count(member, -1);
  member.stage = stage;
  count(member, 1);
}

void Membership::set_drained(Slot slot, bool drained) {
  Member& member = members_[slot];
  if (member.drained == drained) return;
  changed();
  count(member, -1);
  member.drained = drained;
  count(member, 1);
}

void Membership::make_youngest(Slot slot) {
  members_[slot].seniority = next_seniority_++;
  changed();
}

int& Membership::count_of(const Member& ready) {
  if (ready.drained) return drained_;
  return !ready.is_fit() ? unfit_ : ready.aside ? aside_ : ready_;
}

void Membership::count(const Member& member, int by) {
  if (member.stage == Stage::seated) seated_ += by;
  if (member.stage == Stage::stopping) stopping_ += by;
  if (member.stage == Stage::ready) count_of(member) += by;
  if (member.stage == Stage::ready && member.is_missed()) missed_ += by;
}

void Membership::remove(Slot slot) {
  changed();
  Member& member = members_[slot];
  put_aside(slot, {});
  count(member, -1);
  check(slot, {});
  if (member.peer) connections_[member.peer->value()].member.reset();
  slot_of_node_.erase(member.join->node.value());
  forget_rank(slot);
  const auto [begin, end] = on_host(member.join->host);
  slots_of_host_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == slot; }));
  if (member.back_by) --awaited_;
  held_bytes_ -= torchup::held_bytes(member.join);
  member = Member{};
  free_slots_.push_back(slot);
}

void Membership::dismiss_all(std::uint64_t ended_job) {
  for (Connection& each : connections_) {
    if (!each.open || !each.member) continue;
    each.ended_job = ended_job;
    ++leaving_;
  }
  while (!slot_of_node_.empty()) remove(slot_of_node_.begin()->second);
  losses_.clear();
}

// ---- time

/// An agent that moves in its queue at each sign of life would cost as much as the sign itself: `at` may be too early,
/// then the look arms another.
void Membership::check(Slot slot, std::optional<TimePoint> at) {
  Member& member = members_[slot];
  if (member.check_at) checks_.erase({*member.check_at, slot});
  member.check_at = at;
  if (at) checks_.emplace(*at, slot);
}

void Membership::put_aside(Slot slot, std::optional<TimePoint> until) {
  Member& member = members_[slot];
  if (member.calm_at) asides_.erase({*member.calm_at, slot});
  member.calm_at = until;
  if (until) asides_.emplace(*until, slot);
  if (member.aside == until.has_value()) return;
  count(member, -1);
  member.aside = until.has_value();
  count(member, 1);
  changed();
}

TimePoint Membership::due(const Member& member) const {
  if (member.back_by) return *member.back_by;
  return member.alive_at + member.lease;
}

bool Membership::silent(const Member& member, TimePoint now) const {
  if (member.in_process) return false;
  return !member.peer || now - member.alive_at > member.lease * 3 / 10;
}

std::optional<Membership::Slot> Membership::next_expired(TimePoint now) {
  while (!checks_.empty() && checks_.begin()->first <= now) {
    const Slot slot = checks_.begin()->second;
    const TimePoint at = due(members_[slot]);
    if (at <= now) return slot;
    check(slot, at);
  }
  return {};
}

void Membership::await_until(Slot slot, TimePoint back_by) {
  members_[slot].back_by = back_by;
  check(slot, back_by);
}

std::string Membership::why_expired(const Member& member, TimePoint now) const {
  if (member.back_by) return "did not come back after the coordinator started again";
  if (!member.peer) return "did not come back after its connection broke";
  return fmt::format("was silent for {}", seconds(now - member.alive_at));
}

void Membership::end_asides(TimePoint now) {
  while (!asides_.empty() && asides_.begin()->first <= now) put_aside(asides_.begin()->second, {});
}

void Membership::grant_leases(TimePoint now, TimePoint back_by) {
  for (const auto& [node, slot] : slot_of_node_) {
    Member& member = members_[slot];
    member.alive_at = now;
    if (member.back_by) member.back_by = back_by;
  }
}

std::optional<TimePoint> Membership::deadline() const {
  std::optional<TimePoint> first;
  for (const auto* queue : {&checks_, &asides_}) {
    if (!queue->empty() && (!first || queue->begin()->first < *first)) first = queue->begin()->first;
  }
  return first;
}

// ---- snapshots

void Membership::save(JobSnapshot& snapshot, TimePoint now) const {
  snapshot.next_seniority = next_seniority_;
  // Of thousands the places are put in order, and not the members.
  std::vector<std::pair<std::pair<bool, std::uint64_t>, Slot>> order;
  order.reserve(slot_of_node_.size());
  for (const auto& [node, slot] : slot_of_node_) {
    const Member& member = members_[slot];
    const auto seat = static_cast<std::uint64_t>(member.seat.group_rank.value());
    order.push_back({{!member.in_round(), member.in_round() ? seat : member.seniority}, slot});
  }
  std::sort(order.begin(), order.end());
  snapshot.members.reserve(order.size());
  for (const auto& [place, slot] : order) {
    const Member& member = members_[slot];
    snapshot.members.push_back(
        {member.join, member.stage, member.aside, member.observed, member.seniority, member.seat, member.round});
  }
  snapshot.losses = losses_.save(now);
}

void Membership::restore(const JobSnapshot& saved, TimePoint back_by, TimePoint now) {
  next_seniority_ = saved.next_seniority;
  losses_.restore(saved.losses, now);
  if (!saved.terms) return;
  for (const JobSnapshot::SavedMember& each : saved.members) {
    if (slot_of_node_.contains(each.join->node.value())) continue;
    const Slot slot = take_slot();
    members_[slot] = Member{.join = as_kept(each.join),
                            .lease = saved.terms->lease,
                            .stage = each.stage,
                            .observed = each.observed,
                            .alive_at = now,
                            .back_by = back_by,
                            .seniority = each.seniority,
                            .seat = each.seat,
                            .round = each.round};
    index(slot);
    check(slot, back_by);
    if (each.aside) put_aside(slot, losses_.aside_until(each.join->host, now).value_or(now));
    ++awaited_;
  }
}

}  // namespace torchup
