#include "rendezvous/core/diagnosis/lateness.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>
#include <utility>

namespace torchup {
namespace {

constexpr double duration_ms_max = 1e12;

struct BegunCall {
  std::int64_t number = 0;
  std::size_t rank = 0;  ///< index
  std::int64_t arrival_ns = 0;
  std::optional<std::int64_t> duration_ns = {};
};
struct SignatureCalls {
  std::string dtype = {};
  std::vector<BegunCall> begun = {};
};
/// The collectives of one signature that all members have, as one row each, by number.
struct ArrivalTable {
  std::vector<std::int64_t> numbers = {};
  std::vector<std::vector<std::int64_t>> arrivals = {};   ///< of each number, by member
  std::vector<std::vector<std::int64_t>> durations = {};  ///< likewise; fewer rows when some have none
};

std::optional<std::int64_t> in_ns(const std::optional<double>& duration_ms) {
  if (!duration_ms || !(*duration_ms >= 0) || *duration_ms > duration_ms_max) return std::nullopt;
  return static_cast<std::int64_t>(*duration_ms * 1e6);
}

/// `begun` by number and rank, each once; of two with one number the later in the list stays, which is the newer.
void put_in_order(std::vector<BegunCall>& begun) {
  const auto key = [](const BegunCall& one) { return std::pair{one.number, one.rank}; };
  std::ranges::stable_sort(begun, {}, key);
  std::ranges::reverse(begun);
  const auto is_same = [&](const BegunCall& one, const BegunCall& other) { return key(one) == key(other); };
  begun.erase(std::unique(begun.begin(), begun.end(), is_same), begun.end());
  std::ranges::reverse(begun);
}

/// The clock of the day, by which PyTorch tells, was set back: what is new seems to be old. A clock that is only
/// corrected goes by less.
bool was_set_back(std::span<const BegunCall> begun, std::int64_t used_until_ns) {
  constexpr std::int64_t second_ns = 1'000'000'000;
  return used_until_ns - std::ranges::max(begun, {}, &BegunCall::arrival_ns).arrival_ns > second_ns;
}

ArrivalTable arrival_table(std::span<const BegunCall> begun, std::size_t members, std::int64_t used_until_ns) {
  ArrivalTable table;
  for (std::size_t at = 0; at < begun.size();) {
    std::size_t end = at;
    while (end < begun.size() && begun[end].number == begun[at].number) ++end;
    const auto calls = begun.subspan(at, end - at);
    at = end;
    if (calls.size() != members) continue;
    if (std::ranges::max(calls, {}, &BegunCall::arrival_ns).arrival_ns <= used_until_ns) continue;
    table.numbers.push_back(calls.front().number);
    auto& arrivals = table.arrivals.emplace_back();
    for (const BegunCall& call : calls) arrivals.push_back(call.arrival_ns);
    if (!std::ranges::all_of(calls, [](const BegunCall& call) { return call.duration_ns.has_value(); })) continue;
    auto& durations = table.durations.emplace_back();
    for (const BegunCall& call : calls) durations.push_back(*call.duration_ns);
  }
  return table;
}

void keep_newest(ArrivalTable& table, std::size_t count) {
  const auto keep = [count](auto& list) {
    if (list.size() > count) list.erase(list.begin(), list.end() - static_cast<std::ptrdiff_t>(count));
  };
  keep(table.numbers);
  keep(table.arrivals);
  keep(table.durations);
}

std::vector<std::int64_t> latest_of(const ArrivalTable& table) {
  std::vector<std::int64_t> latest;
  for (const auto& row : table.arrivals) latest.push_back(std::ranges::max(row));
  return latest;
}

/// The mean of the gaps without the longest: buckets of one size that follow each other are one step's, so that the
/// median gap would be none.
Duration period_of(const std::vector<std::int64_t>& latest) {
  std::vector<std::int64_t> gaps;
  for (std::size_t i = 1; i < latest.size(); ++i) gaps.push_back(std::max<std::int64_t>(latest[i] - latest[i - 1], 0));
  std::ranges::sort(gaps);
  gaps.resize(gaps.size() - std::max<std::size_t>(gaps.size() / lateness_gaps_to_pause, 1));
  double sum = 0;
  for (const std::int64_t gap : gaps) sum += static_cast<double>(gap);
  return std::chrono::nanoseconds{static_cast<std::int64_t>(sum / static_cast<double>(gaps.size()))};
}

/// Of a table of some rows.
LatestArrivals latest_arrivals(const ArrivalTable& table) {
  const auto latest = latest_of(table);
  LatestArrivals told{.period = period_of(latest)};
  for (std::size_t i = 0; i < latest.size(); ++i) told.numbers.push_back({table.numbers[i], latest[i]});
  return told;
}

/// Who has the shortest duration came last. As times of arrival they stand in the same order, and the longest is 0.
std::vector<Lateness> lateness_of_durations(const std::vector<std::vector<std::int64_t>>& durations) {
  std::vector<Lateness> all(durations.front().size());
  std::vector<std::vector<std::int64_t>> late(all.size());
  for (const auto& row : durations) {
    const std::int64_t longest = std::ranges::max(row);
    const std::int64_t shortest = std::ranges::min(row);
    const bool alone = std::ranges::count(row, shortest) == 1;
    for (std::size_t i = 0; i < row.size(); ++i) {
      late[i].push_back(longest - row[i]);
      if (alone && row[i] == shortest) ++all[i].last;
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].count = durations.size();
    all[i].late = std::chrono::nanoseconds{median_of(std::move(late[i]))};
  }
  return all;
}

/// What is later by how much in one signature's table, by member.
std::vector<Lateness> lateness_in(const ArrivalTable& table, const CollectiveSignature& signature) {
  const bool timed = table.durations.size() == table.numbers.size();
  std::vector<Lateness> late = timed ? lateness_of_durations(table.durations) : lateness_of(table.arrivals);
  const Duration period = period_of(latest_of(table));
  for (Lateness& one : late) {
    one.signature = signature;
    one.period = period;
    one.cpu_side = !timed && signature.operation.starts_with("nccl");
  }
  return late;
}

/// Members of each group are the ranks that have any of its collectives.
using GroupMembers = std::map<std::string_view, std::vector<std::size_t>>;

/// A signature without copies of its texts.
using SignatureKey = std::tuple<std::string_view, std::string_view, std::int64_t>;

std::map<SignatureKey, SignatureCalls> calls_of(std::span<const RankArrivals> ranks, GroupMembers& members) {
  std::map<SignatureKey, SignatureCalls> signatures;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const Arrival& arrival : ranks[rank].arrivals) {
      const Collective& call = arrival.call;
      if (call.point_to_point || call.created_ns <= 0) continue;  // 0: it is not known when
      auto& group = members[call.group];
      if (group.empty() || group.back() != rank) group.push_back(rank);
      SignatureCalls& calls = signatures[{call.group, call.operation, call.elements}];
      if (calls.begun.empty()) calls.dtype = call.dtype;
      calls.begun.push_back({.number = call.number,
                             .rank = rank,
                             .arrival_ns = std::min(call.created_ns, arrival_ns_max),
                             .duration_ns = in_ns(arrival.duration_ms)});
    }
  }
  return signatures;
}

CollectiveSignature signature_of(const SignatureKey& key) {
  const auto& [group, operation, elements] = key;
  return {std::string{group}, std::string{operation}, elements};
}

}  // namespace

bool is_straggler(const Lateness& lateness) {
  if (lateness.count == 0 || lateness.last > lateness.count || lateness.late < straggler_late_min) return false;
  const auto count = static_cast<double>(lateness.count);
  const auto last = static_cast<double>(lateness.last);
  const double by_chance = count / 2 + straggler_chance_deviations * std::sqrt(count) / 2;
  if (last < straggler_last_share * count || last < by_chance) return false;
  return static_cast<double>(lateness.late.count()) >=
         straggler_late_share * static_cast<double>(lateness.period.count());
}

std::int64_t median_of(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const std::int64_t below = *std::max_element(values.begin(), middle);
  return below + (*middle - below) / 2;
}

std::vector<Lateness> lateness_of(std::span<const std::vector<std::int64_t>> times) {
  const std::size_t members = times.front().size();
  std::vector<Lateness> all(members);
  std::vector<std::vector<std::int64_t>> late(members);
  for (const auto& row : times) {
    std::vector<std::int64_t> sorted = row;
    std::ranges::sort(sorted);
    const bool alone = sorted[members - 1] != sorted[members - 2];
    for (std::size_t i = 0; i < members; ++i) {
      // The others' median, without sorting them anew for each member: those behind its own place move up by one.
      const auto own = static_cast<std::size_t>(std::ranges::lower_bound(sorted, row[i]) - sorted.begin());
      const auto other = [&](std::size_t place) { return sorted[place < own ? place : place + 1]; };
      const std::size_t others = members - 1;
      const std::int64_t upper = other(others / 2);
      const std::int64_t lower = others % 2 == 1 ? upper : other(others / 2 - 1);
      late[i].push_back(row[i] - (lower + (upper - lower) / 2));
      if (alone && row[i] == sorted.back()) ++all[i].last;
    }
  }
  for (std::size_t i = 0; i < members; ++i) {
    all[i].count = times.size();
    all[i].late = std::chrono::nanoseconds{median_of(std::move(late[i]))};
  }
  return all;
}

LatenessWindow LatenessMeter::window(std::span<const RankArrivals> ranks) {
  LatenessWindow window;
  bool is_another_waiting = false;
  GroupMembers members;
  auto signatures = calls_of(ranks, members);
  std::erase_if(used_until_ns_, [&](const auto& entry) {
    const auto& [group, operation, elements] = entry.first;
    return !signatures.contains(SignatureKey{group, operation, elements});
  });
  for (auto& [key, calls] : signatures) {
    const CollectiveSignature signature = signature_of(key);
    const auto& group = members.at(signature.group);
    put_in_order(calls.begun);
    const auto used = used_until_ns_.find(signature);
    const bool is_known = used != used_until_ns_.end() && !was_set_back(calls.begun, used->second);
    ArrivalTable fresh = arrival_table(calls.begun, group.size(), is_known ? used->second : -1);
    if (fresh.numbers.empty()) continue;
    keep_newest(fresh, lateness_newest_max);
    const bool is_proof = fresh.numbers.size() >= lateness_least;
    if (is_proof) used_until_ns_[signature] = std::ranges::max(latest_of(fresh));
    ArrivalTable newest;
    if (fresh.numbers.size() < told_numbers_max) {
      newest = arrival_table(calls.begun, group.size(), -1);
      keep_newest(newest, told_numbers_max);
    }
    const ArrivalTable& told = newest.numbers.empty() ? fresh : newest;
    if (told.numbers.size() < lateness_least) continue;
    LatestArrivals& arrivals = window.signatures.emplace_back(latest_arrivals(told));
    arrivals.signature = signature;
    arrivals.dtype = calls.dtype;
    if (group.size() == 1) arrivals.only_rank = ranks[group.front()].rank;
    if (group.size() == 1) continue;

    std::vector<Lateness> late = lateness_in(is_proof ? fresh : told, signature);
    for (std::size_t i = 0; i < late.size(); ++i) {
      late[i].dtype = calls.dtype;
      late[i].rank = ranks[group[i]].rank;
    }
    const Lateness latest = *std::ranges::max_element(late, {}, &Lateness::late);
    if (!window.newest_worst || window.newest_worst->late < latest.late) window.newest_worst = latest;
    if (!is_proof && is_straggler(latest)) is_another_waiting = true;
    if (!is_proof || (window.worst && window.worst->late >= latest.late)) continue;
    window.worst = latest;
    window.ranks = std::move(late);
  }
  if (is_another_waiting && window.worst && !is_straggler(*window.worst)) window.worst.reset();
  return window;
}

}  // namespace torchup
