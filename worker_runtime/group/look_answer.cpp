#include "worker_runtime/group/look_answer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/core/diagnosis/rank_set.hpp"
#include "worker_runtime/group/recorder_tail.hpp"

namespace torchup {
namespace {

/// A group's newest call may be behind many of another one's. LibTorch's recorders hold 2,000, unless they are told
/// otherwise.
constexpr std::size_t searched_calls_max = 4096;
constexpr std::size_t problem_bytes_max = 256;
/// One more than the agent takes, who knows by it that there are more.
constexpr std::size_t told_groups_max = looked_groups_max + 1;

using GroupsByName = std::map<std::string_view, const AnsweringGroup*>;

/// The newest first, those of `groups` alone.
std::vector<RecordedCall> calls_of(const GroupsByName& groups, std::span<const std::string> recorders) {
  std::vector<RecordedCall> calls;
  for (const std::string& text : recorders) {
    std::ranges::copy_if(recorder_tail(text, searched_calls_max), std::back_inserter(calls),
                         [&](const RecordedCall& call) {
                           const auto group = groups.find(call.group);
                           return group != groups.end() && call.created_ns >= group->second->since_ns;
                         });
  }
  if (recorders.size() > 1) std::ranges::stable_sort(calls, std::ranges::greater{}, &RecordedCall::created_ns);
  return calls;
}

std::string ranks_text(const std::vector<int>& global_ranks) {
  std::vector<Rank> ranks;
  std::ranges::transform(global_ranks, std::back_inserter(ranks), [](int rank) { return Rank{rank}; });
  const RankSet set{std::move(ranks)};
  return set.runs().size() <= rank_runs_max ? to_text(set) : std::string{};
}

/// `number`: of its newest collective, -1 where there is none.
std::string group_text(const AnsweringGroup& group, std::int64_t number) {
  return fmt::format(R"({{"name":"{}","desc":"{}","ranks":"{}","number":{},"seq":{}}})", group.name, group.description,
                     ranks_text(group.global_ranks), number, group.sequence);
}

std::string call_text(const RecordedCall& call) {
  const auto or_null = [](std::string_view value) { return value.empty() ? std::string_view{"null"} : value; };
  std::string text = fmt::format(
      R"({{"group":"{}","number":{},"p2p":{},"operation":{},"sizes":{},"dtypes":{},"created_ns":{},"retired":{})",
      call.group, call.number, call.point_to_point, or_null(call.operation), or_null(call.sizes), or_null(call.dtypes),
      call.created_ns, call.retired);
  if (!call.duration_ms.empty()) text.append(",\"duration_ms\":").append(call.duration_ms);
  return text + "}";
}

/// Takes a text into the list if there is room for it and its comma.
bool add(std::vector<std::string>& texts, std::string text, std::size_t& room) {
  if (text.size() + 1 > room) return false;
  room -= text.size() + 1;
  texts.push_back(std::move(text));
  return true;
}

}  // namespace

std::string look_answer(std::span<const AnsweringGroup> groups, std::span<const std::string> recorders,
                        std::size_t bytes_max) {
  GroupsByName by_name;
  for (const AnsweringGroup& group : groups) by_name.emplace(group.name, &group);
  const std::vector<RecordedCall> calls = calls_of(by_name, recorders);
  std::map<std::string_view, std::int64_t> numbers;
  for (const RecordedCall& call : calls) {
    if (!call.point_to_point) numbers.emplace(call.group, call.number);
  }

  constexpr std::string_view frame = R"({"groups":[],"entries":[]})";
  std::size_t room = bytes_max - std::min(bytes_max, frame.size());
  std::vector<std::string> group_texts;
  for (const AnsweringGroup& group : groups.first(std::min(groups.size(), told_groups_max))) {
    const auto number = numbers.find(group.name);
    if (!add(group_texts, group_text(group, number == numbers.end() ? -1 : number->second), room)) break;
  }
  std::vector<std::string> call_texts;
  for (const RecordedCall& call : std::span{calls}.first(std::min(calls.size(), looked_entries_max))) {
    if (!add(call_texts, call_text(call), room)) break;
  }
  std::ranges::reverse(call_texts);
  return fmt::format(R"({{"groups":[{}],"entries":[{}]}})", fmt::join(group_texts, ","), fmt::join(call_texts, ","));
}

std::string look_problem(std::string_view why) {
  const nlohmann::json groups = {{{"name", ""}, {"desc", why.substr(0, problem_bytes_max)}}};
  const nlohmann::json answer = {{"groups", groups}, {"entries", nlohmann::json::array()}};
  return answer.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace torchup
