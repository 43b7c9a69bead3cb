#include "rendezvous/core/diagnosis/lateness_nodes.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "rendezvous/core/diagnosis/mixed_bits.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

std::vector<LatestArrivals::Number> chosen_numbers(std::vector<LatestArrivals::Number> numbers) {
  if (numbers.size() <= told_numbers_max) return numbers;
  const auto bits = [](const LatestArrivals::Number& one) {
    return mixed_bits(static_cast<std::uint64_t>(one.number));
  };
  std::ranges::nth_element(numbers, numbers.begin() + told_numbers_max, {}, bits);
  numbers.resize(told_numbers_max);
  std::ranges::sort(numbers, {}, &LatestArrivals::Number::number);
  return numbers;
}

std::int64_t on_other_clock(std::int64_t time_ns, Duration offset) {
  const std::int64_t by = std::clamp<std::int64_t>(offset.count(), -arrival_ns_max, arrival_ns_max);
  return std::clamp(std::clamp(time_ns, -arrival_ns_max, arrival_ns_max) + by, -arrival_ns_max, arrival_ns_max);
}

/// One signature on the nodes that tell it.
struct ToldSignature {
  std::vector<std::size_t> nodes = {};
  std::vector<const LatestArrivals*> arrivals = {};
};

/// Of each number that all have told, the times by node.
std::map<std::int64_t, std::vector<std::int64_t>> shared_times(const ToldSignature& told) {
  std::map<std::int64_t, std::vector<std::int64_t>> times;
  for (std::size_t i = 0; i < told.arrivals.size(); ++i) {
    const auto& numbers = told.arrivals[i]->numbers;
    for (const auto& [number, latest_ns] : std::span{numbers}.first(std::min(numbers.size(), told_numbers_max))) {
      auto& row = times[number];
      if (row.size() == i) row.push_back(std::clamp(latest_ns, -arrival_ns_max, arrival_ns_max));
    }
    std::erase_if(times, [&](const auto& entry) { return entry.second.size() != i + 1; });
  }
  return times;
}

struct ComparedRows {
  std::vector<std::vector<std::int64_t>> rows = {};  ///< none: there are not enough
  bool is_proof = false;                             ///< no window before has compared any of them
};

/// Those that were not compared before if they are enough; then they are now. Numbers that end before the one that was
/// compared last are those of a group that was made again.
ComparedRows rows_to_compare(const CollectiveSignature& signature, ComparedNumbers& compared,
                             std::map<std::int64_t, std::vector<std::int64_t>> times) {
  if (times.size() < lateness_least) return {};
  const std::int64_t newest = times.rbegin()->first;
  const auto known = compared.find(signature);
  const bool is_later = known != compared.end() && known->second <= newest;
  auto first = is_later ? times.upper_bound(known->second) : times.begin();
  const bool is_proof = static_cast<std::size_t>(std::distance(first, times.end())) >= lateness_least;
  if (is_proof) compared[signature] = newest;
  if (!is_proof) first = times.begin();
  ComparedRows found{.is_proof = is_proof};
  for (; first != times.end(); ++first) found.rows.push_back(std::move(first->second));
  return found;
}

/// Of signatures that nobody tells any more, one is new again when they come back.
void forget_some(ComparedNumbers& compared, const std::map<CollectiveSignature, ToldSignature>& told) {
  if (compared.size() <= 2 * told_signatures_max) return;
  std::erase_if(compared, [&](const auto& entry) { return !told.contains(entry.first); });
  while (compared.size() > 2 * told_signatures_max) compared.erase(compared.begin());
}

Duration clock_error_of(const ToldSignature& told, std::span<const NodeWindow> nodes, std::size_t index) {
  const auto error = [&](std::size_t node) { return std::clamp(nodes[node].clock_error, Duration{0}, duration_max); };
  std::vector<std::int64_t> others;
  for (std::size_t i = 0; i < told.nodes.size(); ++i) {
    if (i != index) others.push_back(error(told.nodes[i]).count());
  }
  return std::max(error(told.nodes[index]), Duration{median_of(std::move(others))});
}

Duration common_period(const ToldSignature& told) {
  std::vector<std::int64_t> periods;
  for (const LatestArrivals* const each : told.arrivals) {
    periods.push_back(std::clamp(each->period, Duration{0}, duration_max).count());
  }
  return Duration{median_of(std::move(periods))};
}

struct LateNode {
  std::size_t node = 0;
  Lateness lateness = {};
};

/// The latest of one signature, of those whose lateness is more than what the clocks may be wrong.
std::optional<LateNode> latest_node(const ToldSignature& told, std::span<const NodeWindow> nodes,
                                    std::span<const std::vector<std::int64_t>> times) {
  std::optional<LateNode> found;
  const std::vector<Lateness> late = lateness_of(times);
  for (std::size_t i = 0; i < late.size(); ++i) {
    if (late[i].late < late_errors_min * clock_error_of(told, nodes, i)) continue;
    if (found && found->lateness.late >= late[i].late) continue;
    found = LateNode{told.nodes[i], late[i]};
    found->lateness.signature = told.arrivals[i]->signature;
    found->lateness.dtype = told.arrivals[i]->dtype;
    found->lateness.rank = told.arrivals[i]->only_rank;
    found->lateness.period = common_period(told);
    found->lateness.cpu_side = told.arrivals[i]->signature.operation.starts_with("nccl");
  }
  return found;
}

bool has_straggler(const NodeWindow& node) { return node.worst && is_straggler(*node.worst); }

LateMember late_member(const NodeWindow& node, const Lateness& lateness) { return {node.node, node.host, lateness}; }

}  // namespace

std::vector<LatestArrivals> told_arrivals(const LatenessWindow& window, const ClockOffset::Estimate& clock,
                                          std::span<const std::string> shared_groups) {
  std::vector<const LatestArrivals*> shared;
  for (const LatestArrivals& each : window.signatures) {
    if (std::ranges::binary_search(shared_groups, each.signature.group)) shared.push_back(&each);
  }
  // In an order that all agents have.
  const auto place = [](const LatestArrivals* each) { return std::pair{-each->signature.elements, each->signature}; };
  std::ranges::sort(shared, {}, place);
  if (shared.size() > told_signatures_max) shared.resize(told_signatures_max);

  std::vector<LatestArrivals> told;
  for (const LatestArrivals* const each : shared) {
    told.push_back(*each);
    told.back().numbers = chosen_numbers(each->numbers);
    for (auto& [_, latest_ns] : told.back().numbers) latest_ns = on_other_clock(latest_ns, clock.offset);
  }
  return told;
}

WindowFindings judge_window(std::span<const NodeWindow> nodes, ComparedNumbers& compared) {
  std::map<CollectiveSignature, ToldSignature> signatures;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto& all = nodes[i].told;
    for (const LatestArrivals& told : std::span{all}.first(std::min(all.size(), told_signatures_max))) {
      ToldSignature& entry = signatures[told.signature];
      if (!entry.nodes.empty() && entry.nodes.back() == i) continue;
      entry.nodes.push_back(i);
      entry.arrivals.push_back(&told);
    }
  }

  WindowFindings findings;
  std::optional<LateNode> latest;
  bool is_another_waiting = false;
  std::set<std::string_view> compared_groups;
  for (const auto& [signature, told] : signatures) {
    if (told.nodes.size() < 2) continue;
    compared_groups.insert(signature.group);
    const auto [rows, is_proof] = rows_to_compare(signature, compared, shared_times(told));
    if (rows.empty()) continue;
    auto found = latest_node(told, nodes, rows);
    if (!is_proof) {
      if (found && is_straggler(found->lateness)) is_another_waiting = true;
      continue;
    }
    findings.measured = true;
    if (found && (!latest || found->lateness.late > latest->lateness.late)) latest = std::move(found);
  }
  forget_some(compared, signatures);
  if (latest && is_straggler(latest->lateness)) {
    const NodeWindow& node = nodes[latest->node];
    findings.straggler = late_member(node, has_straggler(node) ? *node.worst : latest->lateness);
    return findings;
  }
  // What speaks against nobody breaks no row of a kind that is only not due in this window.
  if (is_another_waiting) return {};

  for (const NodeWindow& node : nodes) {
    if (!node.worst) continue;
    // Where nodes are compared, who is late only among its neighbours keeps nobody waiting.
    if (compared_groups.contains(node.worst->signature.group)) continue;
    findings.measured = true;
    if (!has_straggler(node)) continue;
    if (findings.straggler && findings.straggler->lateness.late >= node.worst->late) continue;
    findings.straggler = late_member(node, *node.worst);
  }
  return findings;
}

}  // namespace torchup
