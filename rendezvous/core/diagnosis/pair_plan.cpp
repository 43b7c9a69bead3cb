#include "rendezvous/core/diagnosis/pair_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "rendezvous/core/diagnosis/mixed_bits.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

std::vector<int> shuffled_nodes(int count, Round round) {
  std::vector<int> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::uint64_t chance = static_cast<std::uint64_t>(round.value());
  for (std::size_t i = order.size(); i > 1; --i) {
    chance = mixed_bits(chance);
    std::swap(order[i - 1], order[chance % i]);
  }
  return order;
}

NodePair pair_of(int one, int other) { return {GroupRank{std::min(one, other)}, GroupRank{std::max(one, other)}}; }

struct TriedPair {
  bool connected = true;
  std::int64_t bytes_per_s = 0;
  std::string problem = {};
  bool bad = false;
};
using TriedPairs = std::map<NodePair, TriedPair>;

TriedPairs merged_results(std::span<const PairResult> results, int nodes) {
  TriedPairs pairs;
  for (const PairResult& result : results) {
    if (result.pair.first.value() < 0 || result.pair.second.value() >= nodes ||
        result.pair.first >= result.pair.second) {
      continue;
    }
    const std::int64_t rate = std::max<std::int64_t>(result.bytes_per_s, 0);
    const auto [entry, is_new] = pairs.try_emplace(result.pair, TriedPair{.bytes_per_s = rate});
    TriedPair& tried = entry->second;
    tried.bytes_per_s = std::min(tried.bytes_per_s, rate);
    if (result.connected) continue;
    tried.connected = false;
    if (tried.problem.empty()) tried.problem = result.problem;
  }
  return pairs;
}

/// Of the pairs that are connected; 0 when none is.
double median_rate(const TriedPairs& pairs) {
  std::vector<double> rates;
  for (const auto& [_, tried] : pairs) {
    if (tried.connected) rates.push_back(static_cast<double>(tried.bytes_per_s));
  }
  if (rates.empty()) return 0;
  std::ranges::sort(rates);
  const std::size_t middle = rates.size() / 2;
  return rates.size() % 2 == 1 ? rates[middle] : (rates[middle - 1] + rates[middle]) / 2;
}

/// "1.2 GB/s", "340 MB/s".
std::string pair_rate_text(double bytes_per_s) {
  return bytes_per_s >= 1e9 ? fmt::format("{:.1f} GB/s", bytes_per_s / 1e9)
                            : fmt::format("{:.1f} MB/s", bytes_per_s / 1e6);
}

struct PairStanding {
  std::size_t pairs = 0;
  std::size_t bad = 0;
};
/// Whether `one` has a larger share of bad pairs; exact, for equal shares must be equal.
bool has_more_bad(const PairStanding& one, const PairStanding& other) {
  return one.bad * other.pairs > other.bad * one.pairs;
}

std::vector<PairStanding> pair_standings(const TriedPairs& pairs, const std::vector<bool>& condemned) {
  std::vector<PairStanding> all(condemned.size());
  for (const auto& [pair, tried] : pairs) {
    const auto first = static_cast<std::size_t>(pair.first.value());
    const auto second = static_cast<std::size_t>(pair.second.value());
    if (condemned[first] || condemned[second]) continue;
    for (const std::size_t end : {first, second}) {
      ++all[end].pairs;
      if (tried.bad) ++all[end].bad;
    }
  }
  return all;
}

bool is_condemned(const PairStanding& standing, PairRule rule) {
  if (standing.bad == 0) return false;
  return rule == PairRule::half ? 2 * standing.bad >= standing.pairs : standing.bad == standing.pairs;
}

/// The bad pairs of each node, with the other end.
struct BadPairs {
  std::size_t pairs = 0;
  std::size_t bad = 0;
  std::vector<std::string> unreached = {};
  std::vector<std::string> slow = {};
};

void mark_bad(TriedPairs& pairs, double median) {
  for (auto& [_, tried] : pairs) {
    tried.bad = !tried.connected || static_cast<double>(tried.bytes_per_s) < pair_rate_share_min * median;
  }
}

std::string bad_pairs_reason(const BadPairs& pairs, std::string_view host, double median) {
  std::string reason = fmt::format("{} has {} of {} pairs bad", host, pairs.bad, pairs.pairs);
  if (!pairs.unreached.empty()) {
    reason += ": no connection with " + join_names(pairs.unreached, pair_ends_told_max);
  }
  if (!pairs.slow.empty()) {
    reason += fmt::format("{} {}, where the median is {}", pairs.unreached.empty() ? ":" : ";",
                          join_names(pairs.slow, pair_ends_told_max), pair_rate_text(median));
  }
  return reason;
}

/// Of the nodes that are condemned.
std::map<std::size_t, std::string> reasons_of(const TriedPairs& pairs, const std::vector<bool>& condemned,
                                              std::span<const std::string> hosts, double median) {
  std::map<std::size_t, BadPairs> told;
  for (const auto& [pair, tried] : pairs) {
    for (const auto& [own, other] : {std::pair{pair.first, pair.second}, std::pair{pair.second, pair.first}}) {
      const auto index = static_cast<std::size_t>(own.value());
      if (!condemned[index]) continue;
      BadPairs& bad = told[index];
      ++bad.pairs;
      if (!tried.bad) continue;
      ++bad.bad;
      std::string name = printable_start(hosts[static_cast<std::size_t>(other.value())]);
      if (tried.connected) {
        bad.slow.push_back(fmt::format("{} with {}", pair_rate_text(static_cast<double>(tried.bytes_per_s)), name));
      } else {
        if (!tried.problem.empty()) name += fmt::format(" ({})", printable_start(tried.problem));
        bad.unreached.push_back(std::move(name));
      }
    }
  }
  std::map<std::size_t, std::string> reasons;
  for (const auto& [index, bad] : told) reasons[index] = bad_pairs_reason(bad, printable_start(hosts[index]), median);
  return reasons;
}

}  // namespace

std::vector<Matching> pair_plan(int nodes, Round round, int matchings) {
  std::vector<Matching> plan;
  if (nodes < 2 || nodes > nodes_max) return plan;
  // A tournament: one place stands still, the others go on by one between matchings. Who meets the place that nobody
  // has, where their count is odd, pauses.
  const std::vector<int> order = shuffled_nodes(nodes, round);
  const auto places = order.size() + order.size() % 2;
  const std::size_t circle = places - 1;
  const auto count = std::min(circle, static_cast<std::size_t>(std::max(matchings, 0)));
  for (std::size_t turn = 0; turn < count; ++turn) {
    Matching& matching = plan.emplace_back();
    const auto add = [&](std::size_t one, std::size_t other) {
      if (one < order.size() && other < order.size()) matching.push_back(pair_of(order[one], order[other]));
    };
    add(circle, turn);
    for (std::size_t step = 1; step < places / 2; ++step) add((turn + step) % circle, (turn + circle - step) % circle);
    std::ranges::sort(matching);
  }
  return plan;
}

std::vector<UnfitNode> unfit_in(std::span<const PairResult> results, std::span<const std::string> hosts,
                                PairRule rule) {
  TriedPairs pairs = merged_results(results, static_cast<int>(hosts.size()));
  const double median = median_rate(pairs);
  mark_bad(pairs, median);

  std::vector<bool> condemned(hosts.size(), false);
  for (bool more = true; more;) {
    more = false;
    const auto all = pair_standings(pairs, condemned);
    PairStanding worst{.pairs = 1, .bad = 0};
    for (const PairStanding& one : all) {
      if (is_condemned(one, rule) && has_more_bad(one, worst)) worst = one;
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!is_condemned(all[i], rule) || has_more_bad(worst, all[i])) continue;
      condemned[i] = more = true;
    }
  }

  std::vector<UnfitNode> unfit;
  for (auto& [index, reason] : reasons_of(pairs, condemned, hosts, median)) {
    unfit.push_back({GroupRank{static_cast<int>(index)}, std::move(reason)});
  }
  return unfit;
}

double median_rate(std::span<const PairResult> results, std::size_t nodes) {
  return median_rate(merged_results(results, static_cast<int>(nodes)));
}

std::string unfit_again(std::span<const PairResult> results, std::span<const std::string> hosts, GroupRank own,
                        double median) {
  TriedPairs pairs = merged_results(results, static_cast<int>(hosts.size()));
  mark_bad(pairs, median);
  const auto index = static_cast<std::size_t>(own.value());
  std::vector<bool> condemned(hosts.size(), false);
  const auto standings = pair_standings(pairs, condemned);
  if (index >= standings.size() || !is_condemned(standings[index], PairRule::half)) return {};
  condemned[index] = true;
  return reasons_of(pairs, condemned, hosts, median).at(index);
}

}  // namespace torchup
