#include "rendezvous/core/diagnosis/awaited_collective.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>

#include "rendezvous/core/diagnosis/operation_words.hpp"

namespace torchup {
namespace {

using Begun = WaitGraph::Begun;
using Calls = std::span<const Begun>;

RankSet set_of(const auto& items, const auto& is_in) {
  std::vector<Rank> ranks;
  for (const auto& item : items) {
    if (is_in(item)) ranks.emplace_back(item.rank);
  }
  return RankSet{std::move(ranks)};
}

/// The calls of a group at one number, which begin at `at`.
Calls same_number(const WaitGraph::Group& group, std::size_t at) {
  std::size_t end = at;
  while (end < group.begun.size() && group.begun[end].number == group.begun[at].number) ++end;
  return Calls{group.begun}.subspan(at, end - at);
}

/// Of calls at one number, those of the first one's backend.
Calls same_backend(Calls calls) {
  const auto end =
      std::ranges::find_if(calls, [&](const Begun& call) { return call.backend != calls.front().backend; });
  return calls.first(static_cast<std::size_t>(end - calls.begin()));
}

AwaitedCollective told(const WaitGraph& graph, const WaitGraph::Group& group, const Begun& call) {
  const std::string_view dtype = plain_dtype(graph.text(call.dtype));
  return {.group = group.name,
          .description = group.description,
          .number = call.number,
          .operation = std::string{plain_operation(graph.text(call.operation))},
          .sizes = std::string{graph.text(call.sizes)},
          .elements = call.elements,
          .dtype = std::string{dtype},
          .bytes = bytes_of(call.elements, dtype)};
}

AwaitedCollective told(const WaitGraph& graph, const WaitGraph::Group& group, Calls calls) {
  const auto unfinished = std::ranges::find(calls, false, &Begun::finished);
  AwaitedCollective collective = told(graph, group, *unfinished);
  collective.missing =
      set_of(group.members, [&](const WaitGraph::Member& member) { return member.newest < collective.number; });
  collective.waiting = set_of(calls, [](const Begun& call) { return !call.finished; });
  return collective;
}

/// What must be the same of all members.
using Signature = std::tuple<std::string_view, std::int64_t, std::string_view>;

/// `sized`: where sizes must be equal they are compared.
Signature signature(const WaitGraph& graph, const Begun& call, bool sized) {
  const std::string_view operation = plain_operation(graph.text(call.operation));
  if (!sized || !needs_equal_sizes(operation)) return {operation, -1, {}};
  return {operation, call.elements, plain_dtype(graph.text(call.dtype))};
}

/// Empty where all do the same.
std::vector<std::vector<const Begun*>> sides_of(const WaitGraph& graph, Calls calls) {
  // Somebody whose size is not known may well have the others'.
  const bool sized = std::ranges::all_of(
      calls, [&](const Begun& call) { return call.elements >= 0 && !graph.text(call.dtype).empty(); });
  std::map<Signature, std::vector<const Begun*>> by_signature;
  const Signature first = signature(graph, calls.front(), sized);
  if (std::ranges::all_of(calls, [&](const Begun& call) { return signature(graph, call, sized) == first; })) return {};
  for (const Begun& call : calls) by_signature[signature(graph, call, sized)].push_back(&call);
  std::vector<std::vector<const Begun*>> sides;
  for (auto& [_, side] : by_signature) sides.push_back(std::move(side));
  std::ranges::stable_sort(sides, std::greater{}, [](const auto& side) { return side.size(); });
  return sides;
}

Mismatch mismatch_of(const WaitGraph& graph, const WaitGraph::Group& group, Calls calls,
                     const std::vector<std::vector<const Begun*>>& sides) {
  Mismatch mismatch{.culprits = {}, .collective = told(graph, group, calls)};
  const bool equal = sides[0].size() == sides[1].size();
  for (std::size_t i = 0; i < sides.size(); ++i) {
    std::vector<Rank> ranks;
    for (const Begun* call : sides[i]) {
      ranks.emplace_back(call->rank);
      if (equal || i > 0) mismatch.culprits.push_back(call->rank);
    }
    if (i >= sides_told_max) continue;
    AwaitedCollective call = told(graph, group, *sides[i].front());
    mismatch.collective.operations.push_back({.ranks = RankSet{std::move(ranks)},
                                              .operation = std::move(call.operation),
                                              .sizes = std::move(call.sizes),
                                              .elements = call.elements,
                                              .dtype = std::move(call.dtype),
                                              .bytes = call.bytes});
  }
  std::ranges::sort(mismatch.culprits);
  return mismatch;
}

/// The lowest number that one of `culprits` has not begun and somebody waits in; without culprits the lowest that is
/// unfinished. Empty: nobody waits here for them.
Calls awaited_calls(const WaitGraph::Group& group, const std::vector<int>& culprits) {
  std::optional<std::int64_t> begun_by_all;
  for (const WaitGraph::Member& member : group.members) {  // by newest number: the first is the least
    if (!std::ranges::binary_search(culprits, member.rank)) continue;
    begun_by_all = member.newest;
    break;
  }
  if (!culprits.empty() && !begun_by_all) return {};
  for (std::size_t at = 0; at < group.begun.size();) {
    const Calls calls = same_number(group, at);
    at += calls.size();
    if (begun_by_all && calls.front().number <= *begun_by_all) continue;
    if (std::ranges::any_of(calls, [](const Begun& call) { return !call.finished; })) return calls;
  }
  return {};
}

std::optional<AwaitedCollective> awaited_peer(const WaitGraph& graph, const std::vector<int>& culprits) {
  for (const WaitGraph::PeerCall& call : graph.peer_calls()) {
    if (!culprits.empty() && !std::ranges::binary_search(culprits, call.peer)) continue;
    AwaitedCollective collective = told(graph, graph.groups()[call.group], call.begun);
    collective.point_to_point = true;
    collective.waiting = RankSet{{Rank{call.begun.rank}}};
    if (!call.met) collective.missing = RankSet{{Rank{call.peer}}};
    return collective;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Mismatch> find_mismatch(const WaitGraph& graph) {
  std::optional<Mismatch> found;
  std::size_t found_ranks = 0;
  for (const WaitGraph::Group& group : graph.groups()) {
    if (!group.waited_in) continue;
    for (std::size_t at = 0; at < group.begun.size();) {
      const Calls calls = same_backend(same_number(group, at));
      at += calls.size();
      if (std::ranges::all_of(calls, &Begun::finished)) continue;
      const auto sides = sides_of(graph, calls);
      if (sides.empty()) continue;
      if (calls.size() > found_ranks) {
        found_ranks = calls.size();
        found = mismatch_of(graph, group, calls, sides);
      }
      break;
    }
  }
  return found;
}

std::optional<AwaitedCollective> awaited_collective(const WaitGraph& graph, const std::vector<int>& culprits) {
  const WaitGraph::Group* best_group = nullptr;
  Calls best;
  std::ptrdiff_t most = 0;
  for (const WaitGraph::Group& group : graph.groups()) {
    if (!group.waited_in) continue;
    const Calls calls = awaited_calls(group, culprits);
    const auto waiting = std::ranges::count(calls, false, &Begun::finished);
    if (waiting <= most) continue;
    best_group = &group;
    best = calls;
    most = waiting;
  }
  return best_group == nullptr ? awaited_peer(graph, culprits) : told(graph, *best_group, best);
}

}  // namespace torchup
