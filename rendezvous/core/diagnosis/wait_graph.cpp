#include "rendezvous/core/diagnosis/wait_graph.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "rendezvous/core/diagnosis/closed_circles.hpp"
#include "rendezvous/core/diagnosis/operation_words.hpp"

namespace torchup {
namespace {

/// Members that have not begun `number` are the first so many.
std::size_t behind(const WaitGraph::Group& group, std::int64_t number) {
  const auto end = std::ranges::lower_bound(group.members, number, {}, &WaitGraph::Member::newest);
  return static_cast<std::size_t>(end - group.members.begin());
}

}  // namespace

WaitGraph::WaitGraph(int world_size)
    : world_size_{std::max(world_size, 0)}, answers_(index(world_size_)), waits_(index(world_size_)),
      waited_for_(index(world_size_)), behind_(index(world_size_)), in_call_(index(world_size_)),
      knows_peer_(index(world_size_)) {}

std::string_view WaitGraph::text(std::uint32_t number) const {
  return number < texts_.size() ? std::string_view{texts_[number]} : std::string_view{};
}

std::uint32_t WaitGraph::number_of(const std::string& text) {
  const auto [entry, is_new] = text_numbers_.try_emplace(text, static_cast<std::uint32_t>(texts_.size()));
  if (is_new) texts_.push_back(text);
  return entry->second;
}

std::size_t WaitGraph::group_of(const GroupPosition& position) {
  std::string key = position.name;
  key.append(1, '\0').append(to_text(position.ranks));
  const auto [entry, is_new] = groups_by_key_.try_emplace(std::move(key), groups_.size());
  if (is_new) {
    groups_by_name_[position.name].push_back(groups_.size());
    groups_.push_back({.name = position.name, .ranks = position.ranks});
  }
  Group& group = groups_[entry->second];
  if (group.description.empty()) group.description = position.description;
  return entry->second;
}

void WaitGraph::add(const RankLook& look) {
  const int rank = look.rank.value();
  if (!look.seen || !look.groups_known || !is_rank(rank) || answers_[index(rank)] != Answer::none) return;
  answers_[index(rank)] = look.groups_cut ? Answer::cut : Answer::all;
  // A rank has few groups and few calls: what belongs together is found by looking through them.
  std::vector<Unplaced> own;
  for (const GroupPosition& position : look.groups) {
    // Who does not count itself among the members speaks of another group.
    if (!position.ranks.empty() && !position.ranks.contains(look.rank)) continue;
    const auto names_it = [&](const Unplaced& known) { return known.position.name == position.name; };
    if (std::ranges::none_of(own, names_it)) own.push_back({rank, position, {}});
  }
  for (const Collective& call : look.collectives) {
    auto at = std::ranges::find_if(own, [&](const Unplaced& known) { return known.position.name == call.group; });
    if (at == own.end()) at = own.insert(own.end(), {rank, {.name = call.group}, {}});
    at->calls.push_back(call);
  }
  for (Unplaced& position : own) {
    if (position.position.ranks.empty()) {
      unplaced_.push_back(std::move(position));
    } else {
      place(rank, group_of(position.position), position.position, position.calls);
    }
  }
}

void WaitGraph::place(int rank, std::size_t group, const GroupPosition& position,
                      const std::vector<Collective>& calls) {
  std::int64_t newest = std::max(position.number, std::int64_t{-1});
  for (const Collective& call : calls) {
    place_call(rank, group, call);
    if (!call.point_to_point) newest = std::max(newest, call.number);
  }
  groups_[group].members.push_back({rank, newest});
}

void WaitGraph::place_call(int rank, std::size_t group, const Collective& call) {
  const Begun begun{.rank = rank,
                    .number = std::max(call.number, std::int64_t{0}),
                    .finished = call.finished,
                    .backend = number_of(std::string{backend_of(call.operation)}),
                    .operation = number_of(call.operation),
                    .sizes = number_of(call.sizes),
                    .dtype = number_of(call.dtype),
                    .elements = call.elements};
  if (!call.finished && (!call.point_to_point || call.peer)) anything_unfinished_ = in_call_[index(rank)] = true;
  if (call.point_to_point) {
    if (call.peer && !call.finished) peer_calls_.push_back({begun, group, call.peer->value()});
    return;
  }
  groups_[group].begun.push_back(begun);
  if (!call.finished) groups_[group].waited_in = true;
}

/// The group of that name to which the rank belongs by the word of others; else one whose members nobody tells.
std::size_t WaitGraph::likely_group(const Unplaced& unplaced) {
  if (const auto named = groups_by_name_.find(unplaced.position.name); named != groups_by_name_.end()) {
    for (const std::size_t group : named->second) {
      if (visits_left_ == 0) break;
      --visits_left_;
      if (groups_[group].ranks.contains(Rank{unplaced.rank})) return group;
    }
  }
  return group_of(unplaced.position);
}

void WaitGraph::finish() {
  for (const Unplaced& unplaced : unplaced_) {
    place(unplaced.rank, likely_group(unplaced), unplaced.position, unplaced.calls);
  }
  unplaced_.clear();
  for (Group& group : groups_) {
    std::ranges::sort(group.begun, {}, [](const Begun& one) { return std::tuple{one.number, one.backend, one.rank}; });
  }
  gather_members();
  find_waiting();
  find_peers();
}

void WaitGraph::gather_members() {
  std::vector<std::size_t> by_names(groups_.size());
  std::iota(by_names.begin(), by_names.end(), std::size_t{0});
  std::ranges::stable_sort(by_names, std::greater{}, [&](std::size_t at) { return groups_[at].members.size(); });
  std::vector<std::size_t> named_by(index(world_size_));  // for each rank, the last group that it named, from 1
  for (const std::size_t at : by_names) {
    if (groups_[at].waited_in) gather_members(groups_[at], named_by, at + 1);
  }
}

void WaitGraph::gather_members(Group& group, std::vector<std::size_t>& named_by, std::size_t stamp) {
  for (const Member& member : group.members) named_by[index(member.rank)] = stamp;
  const auto size = std::min(group.ranks.size(), std::int64_t{world_size_});
  if (static_cast<std::size_t>(size) <= visits_left_) {
    visits_left_ -= static_cast<std::size_t>(size);
    for (const Rank rank : group.ranks.below(world_size_)) {
      if (named_by[index(rank.value())] == stamp) continue;
      const bool tells_all = answers_[index(rank.value())] == Answer::all;
      group.members.push_back({rank.value(), tells_all ? -1 : unknown});
    }
  }
  std::ranges::sort(group.members, {}, [](const Member& member) { return std::tuple{member.newest, member.rank}; });
}

void WaitGraph::find_waiting() {
  for (const Group& group : groups_) {
    std::int64_t newest_unfinished = -1;
    for (const Begun& begun : group.begun) {
      if (begun.finished) continue;
      newest_unfinished = std::max(newest_unfinished, begun.number);
      if (behind(group, begun.number) > 0) waits_[index(begun.rank)] = true;
    }
    if (newest_unfinished < 0) continue;
    const std::size_t awaited = behind(group, newest_unfinished);
    for (const Member& member : std::span{group.members}.first(awaited)) {
      waited_for_[index(member.rank)] = true;
      const bool may_be_there = member.newest == unknown && answers_[index(member.rank)] == Answer::cut;
      if (!may_be_there) behind_[index(member.rank)] = true;
    }
  }
}

void WaitGraph::find_peers() {
  using PeerEnd = std::tuple<std::size_t, int, int, bool>;  // group, rank, peer, whether it sends
  const auto sends = [&](const PeerCall& call) { return plain_operation(text(call.begun.operation)) == "send"; };
  std::set<PeerEnd> ends;
  for (const PeerCall& call : peer_calls_) ends.insert({call.group, call.begun.rank, call.peer, sends(call)});
  for (PeerCall& call : peer_calls_) {
    knows_peer_[index(call.begun.rank)] = true;
    call.met = !is_rank(call.peer) || call.peer == call.begun.rank ||
               ends.contains(PeerEnd{call.group, call.peer, call.begun.rank, !sends(call)});
    if (call.met) continue;
    waits_[index(call.begun.rank)] = true;
    waited_for_[index(call.peer)] = behind_[index(call.peer)] = true;
  }
}

std::vector<int> WaitGraph::circles() const {
  // Who waits in a group waits for all members up to one: so the members of a group are a chain, each link of which
  // leads to its member and to the link before, and a rank needs one arrow to wait for a hundred thousand.
  std::vector<std::pair<int, std::size_t>> from_ranks;
  std::size_t link = index(world_size_);
  for (const Group& group : groups_) {
    if (!group.waited_in) continue;
    for (const Begun& begun : group.begun) {
      const std::size_t awaited = begun.finished ? 0 : behind(group, begun.number);
      if (awaited > 0) from_ranks.emplace_back(begun.rank, link + awaited - 1);
    }
    link += group.members.size();
  }
  for (const PeerCall& call : peer_calls_) {
    if (!call.met) from_ranks.emplace_back(call.begun.rank, index(call.peer));
  }
  std::ranges::sort(from_ranks);
  Arrows arrows;
  auto arrow = from_ranks.begin();
  for (int rank = 0; rank < world_size_; ++rank) {
    for (; arrow != from_ranks.end() && arrow->first == rank; ++arrow) arrows.to.push_back(arrow->second);
    arrows.end_node();
  }
  for (const Group& group : groups_) {
    if (!group.waited_in) continue;
    for (std::size_t i = 0; i < group.members.size(); ++i) {
      arrows.to.push_back(index(group.members[i].rank));
      if (i > 0) arrows.to.push_back(arrows.nodes() - 1);
      arrows.end_node();
    }
  }
  const std::vector<bool> circle = in_closed_circle(arrows);
  std::vector<int> ranks;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (circle[index(rank)] && waits(rank)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace torchup
