#include "rendezvous/core/membership/seating.hpp"

#include <algorithm>
#include <compare>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>

namespace torchup {
namespace {

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

/// The digits at the start of `text`, without leading zeros.
std::string_view number_at_start(std::string_view text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_digit);
  std::string_view digits = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  return digits;
}

void skip_digits(std::string_view& text) {
  text.remove_prefix(static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_digit) - text.begin()));
}

std::strong_ordering natural_order(std::string_view left, std::string_view right) {
  const std::string_view whole_left = left, whole_right = right;
  while (!left.empty() && !right.empty()) {
    if (is_digit(left.front()) && is_digit(right.front())) {
      const auto a = number_at_start(left), b = number_at_start(right);
      if (a.size() != b.size()) return a.size() <=> b.size();
      if (a != b) return a <=> b;
      skip_digits(left);
      skip_digits(right);
    } else {
      if (left.front() != right.front()) return left.front() <=> right.front();
      left.remove_prefix(1);
      right.remove_prefix(1);
    }
  }
  if (left.empty() != right.empty()) return right.empty() <=> left.empty();
  return whole_left <=> whole_right;  // node07 and node7 are two names
}

/// What a node is ordered by: the address that its user gave it, as in torchrun, else its host's name.
std::string_view order_text(const Join& join) {
  return join.address_demanded && !join.addresses.empty() ? join.addresses.front() : join.host;
}

bool by_address(const Candidate& left, const Candidate& right) {
  const auto order = natural_order(order_text(*left.join), order_text(*right.join));
  return order != 0 ? order < 0 : natural_order(left.join->node.value(), right.join->node.value()) < 0;
}

}  // namespace

bool natural_less(std::string_view left, std::string_view right) { return natural_order(left, right) < 0; }

int round_size(const JobRange& range, int multiple_of, int nodes) {
  int size = std::min(nodes, range.max_nodes);
  size -= size % multiple_of;
  return size >= range.min_nodes ? size : 0;
}

int round_size(const JobTerms& terms, int nodes) { return round_size(range_of(terms), terms.nodes_multiple_of, nodes); }

std::vector<Seat> share_ranks(std::span<const NodeWorkers> nodes) {
  std::vector<Seat> seats;
  seats.reserve(nodes.size());
  std::unordered_map<std::string_view, int> of_role;
  int first_rank = 0;
  for (const NodeWorkers& node : nodes) {
    int& of_its_role = of_role[node.role];
    seats.push_back({.group_rank = GroupRank{static_cast<int>(seats.size())},
                     .first_rank = Rank{first_rank},
                     .first_role_rank = Rank{of_its_role}});
    first_rank += node.local_world_size;
    of_its_role += node.local_world_size;
  }
  for (std::size_t group_rank = 0; group_rank < nodes.size(); ++group_rank) {
    seats[group_rank].role_world_size = of_role[nodes[group_rank].role];
  }
  return seats;
}

Seating seat(std::span<const Candidate> candidates, RankOrder order, const std::vector<std::string>& hosts) {
  Seating result;
  result.order.resize(candidates.size());
  std::iota(result.order.begin(), result.order.end(), std::size_t{0});

  const bool demanded = std::all_of(candidates.begin(), candidates.end(),
                                    [](const Candidate& candidate) { return candidate.join->group_rank.has_value(); });
  std::unordered_map<std::string_view, std::size_t> place;
  if (order == RankOrder::hostlist) {
    for (std::size_t i = 0; i < hosts.size(); ++i) place.emplace(hosts[i], i);
  }
  const auto place_of = [&](const Candidate& candidate) {
    const auto found = place.find(candidate.join->host);
    return found == place.end() ? hosts.size() : found->second;
  };
  std::sort(result.order.begin(), result.order.end(), [&](std::size_t i, std::size_t j) {
    const Candidate &left = candidates[i], &right = candidates[j];
    if (demanded && left.join->group_rank != right.join->group_rank)
      return *left.join->group_rank < *right.join->group_rank;
    switch (order) {
      case RankOrder::join:
        return left.seniority < right.seniority;
      case RankOrder::hostlist:
        if (const auto a = place_of(left), b = place_of(right); a != b) return a < b;
        return by_address(left, right);
      case RankOrder::address:
      case RankOrder::index:
      case RankOrder::unknown:  // never gets here
        break;
    }
    return by_address(left, right);
  });

  std::vector<NodeWorkers> nodes;
  nodes.reserve(candidates.size());
  for (const std::size_t index : result.order) {
    const Join& join = *candidates[index].join;
    nodes.push_back({join.role, join.local_world_size});
    result.world_size += join.local_world_size;
  }
  result.seats = share_ranks(nodes);
  return result;
}

}  // namespace torchup
