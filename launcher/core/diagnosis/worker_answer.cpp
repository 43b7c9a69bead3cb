#include "launcher/core/diagnosis/worker_answer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "launcher/core/text/json.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/base/worker_page.hpp"
#include "rendezvous/core/diagnosis/operation_words.hpp"
#include "rendezvous/core/text/names.hpp"

namespace torchup {
namespace {

constexpr std::int64_t unknown = -1;

const json* member(const json& object, const char* name, const char* other_name) {
  const json* const value = torchup::member(object, name);
  return value ? value : torchup::member(object, other_name);
}

/// A whole number from 0 on; `unknown` for anything else.
std::int64_t count(const json* value) {
  if (!value || !value->is_number_integer()) return unknown;
  if (value->is_number_unsigned()) {
    const auto number = value->get<std::uint64_t>();
    return number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())
               ? static_cast<std::int64_t>(number)
               : unknown;
  }
  return std::max(value->get<std::int64_t>(), unknown);
}

bool is_true(const json* value) { return value && value->is_boolean() && value->get<bool>(); }

std::string text(const json* value, std::size_t bytes_max) {
  if (!value || !value->is_string()) return {};
  return std::string{cut_text(value->get_ref<const std::string&>(), bytes_max)};
}

/// Empty too where the members are too many to tell, for the start of a list is another set.
RankSet ranks_of(const json* value) {
  if (!value || !value->is_string()) return {};
  auto ranks = parse_rank_set(value->get_ref<const std::string&>());
  return ranks ? *std::move(ranks) : RankSet{};
}

/// Elements of all tensors together, each given by its sides; `unknown` where that is no list of such lists, or more
/// than a number holds.
std::int64_t elements_of(const json& tensors) {
  std::int64_t sum = 0;
  for (const json& sides : tensors) {
    if (!sides.is_array()) return unknown;
    std::int64_t product = 1;
    for (const json& side : sides) {
      const std::int64_t length = count(&side);
      if (length == unknown || __builtin_mul_overflow(product, length, &product)) return unknown;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return unknown;
  }
  return sum;
}

/// `[1024, 1024]`; of several tensors `[[2, 3], [4]]`. The end is cut.
std::string sizes_text(const json& tensors) {
  std::string text;
  const auto add = [&](std::string_view part) {
    text += part;
    return text.size() <= look_sizes_bytes_max;
  };
  const auto add_sides = [&](const json& sides) {
    bool room = add("[");
    for (std::size_t i = 0; i < sides.size() && room; ++i) {
      room = add(fmt::format("{}{}", i == 0 ? "" : ", ", count(&sides[i])));
    }
    return room && add("]");
  };
  if (tensors.size() == 1) {
    add_sides(tensors[0]);
  } else if (!tensors.empty()) {
    bool room = add("[");
    for (std::size_t i = 0; i < tensors.size() && room; ++i) room = add(i == 0 ? "" : ", ") && add_sides(tensors[i]);
    if (room) add("]");
  }
  return std::string{cut_text(text, look_sizes_bytes_max)};
}

/// `Float`; `Float,Long` where tensors differ.
std::string dtype_text(const json* dtypes) {
  std::string all;
  std::string_view before;
  if (!dtypes || !dtypes->is_array()) return all;
  for (const json& dtype : *dtypes) {
    if (!dtype.is_string()) return {};
    const std::string_view name = dtype.get_ref<const std::string&>();
    if (name != before) all.append(all.empty() ? "" : ",").append(name);
    before = name;
    if (all.size() > look_dtype_bytes_max) break;
  }
  return std::string{cut_text(all, look_dtype_bytes_max)};
}

using Members = std::unordered_map<std::string, const RankSet*>;  ///< of each group, by its name

/// The rank of the world that is the group's `place`-th member.
std::optional<Rank> member_at(const RankSet& ranks, std::int64_t place) {
  for (const RankRun& run : ranks.runs()) {
    const std::int64_t length = (run.last - run.first) / run.step + 1;
    if (place < length) return Rank{run.first + static_cast<int>(place) * run.step};
    place -= length;
  }
  return std::nullopt;
}

/// Takes ` 0->1` and ` 1<-0` off the operation's end; the peer stands behind the arrow in both.
void read_peer(Collective& call, const Members& members) {
  const auto blank = call.operation.find(' ');
  if (blank == std::string::npos) return;
  const std::string_view pair = std::string_view{call.operation}.substr(blank);
  const auto arrow = std::min(pair.find("->"), pair.find("<-"));
  if (arrow == std::string_view::npos) return;
  const std::string_view digits = pair.substr(arrow + 2);
  std::uint32_t place = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), place);
  const auto group = members.find(call.group);
  if (code == std::errc{} && group != members.end()) call.peer = member_at(*group->second, place);
  call.operation.resize(blank);
}

AnsweredGroup group_of(const json& value) {
  AnsweredGroup group;
  group.position.name = text(torchup::member(value, "name"), look_group_bytes_max);
  group.position.description = text(torchup::member(value, "desc"), look_group_bytes_max);
  group.position.ranks = ranks_of(torchup::member(value, "ranks"));
  group.position.number = count(torchup::member(value, "number"));
  group.sequence = count(torchup::member(value, "seq"));
  return group;
}

/// The recorder says `["0", "default_pg"]`.
std::string group_name(const json& entry) {
  const json* const name = member(entry, "group", "process_group");
  const bool pair = name && name->is_array() && !name->empty();
  return text(pair ? &name->front() : name, look_group_bytes_max);
}

std::optional<AnsweredEntry> entry_of(const json& value, const Members& members) {
  AnsweredEntry entry;
  Collective& call = entry.call;
  call.group = group_name(value);
  call.point_to_point = is_true(member(value, "p2p", "is_p2p"));
  call.number = count(member(value, "number", call.point_to_point ? "p2p_seq_id" : "collective_seq_id"));
  if (call.group.empty() || call.number == unknown) return std::nullopt;
  call.operation = text(member(value, "operation", "profiling_name"), look_operation_bytes_max);
  if (call.point_to_point) read_peer(call, members);
  if (const json* const sizes = member(value, "sizes", "input_sizes"); sizes && sizes->is_array()) {
    call.elements = elements_of(*sizes);
    if (call.elements != unknown) call.sizes = sizes_text(*sizes);
  }
  call.dtype = dtype_text(member(value, "dtypes", "input_dtypes"));
  call.created_ns = std::max<std::int64_t>(count(member(value, "created_ns", "time_created_ns")), 0);
  call.finished = is_true(torchup::member(value, "retired"));
  const json* const duration = torchup::member(value, "duration_ms");
  if (duration && duration->is_number()) {
    const auto ms = duration->get<double>();
    if (std::isfinite(ms) && ms >= 0) entry.duration_ms = ms;
  }
  return entry;
}

/// The recorder keeps the calls of groups that were destroyed, and programs make groups of the same name again, whose
/// numbers begin anew: what stands before a number that is no larger is another group's, and so are the collectives
/// beyond the group's own count.
void leave_out_former(WorkerAnswer& answer) {
  using Count = std::tuple<std::string_view, std::string_view, bool>;
  std::map<Count, std::int64_t> next;  // from the newest entry back
  std::unordered_map<std::string_view, std::int64_t> counts;
  for (AnsweredGroup& group : answer.groups) {
    if (group.sequence < 0) continue;
    counts.emplace(group.position.name, group.sequence);
    if (group.position.number > group.sequence) group.position.number = unknown;
  }
  std::set<Count> begun_anew;
  std::vector<AnsweredEntry> kept;
  for (auto entry = answer.entries.rbegin(); entry != answer.entries.rend(); ++entry) {
    const Collective& call = entry->call;
    const Count count{call.group, backend_of(call.operation), call.point_to_point};
    const auto [behind, is_newest] = next.try_emplace(count, call.number);
    // Point-to-point calls that go together have one number.
    const bool goes_back = call.number > behind->second || (call.number == behind->second && !call.point_to_point);
    if (!is_newest && goes_back) begun_anew.insert(count);
    behind->second = call.number;
    const auto own = counts.find(call.group);
    const bool is_beyond = own != counts.end() && !call.point_to_point && call.number > own->second;
    if (!is_beyond && !begun_anew.contains(count)) kept.push_back(*entry);
  }
  std::ranges::reverse(kept);
  answer.entries = std::move(kept);
}

/// The last ones of a list; none where it is no list.
std::span<const json> last_of(const json* list, std::size_t most) {
  if (!list || !list->is_array()) return {};
  const std::span<const json> all{list->get_ref<const json::array_t&>()};
  return all.last(std::min(all.size(), most));
}

}  // namespace

Result<WorkerAnswer> parse_worker_answer(std::string_view bytes) {
  if (bytes.size() > worker_answer_bytes) {
    return fail(errc::limit_exceeded, fmt::format("it is longer than {} bytes", worker_answer_bytes));
  }
  const auto whole = parse_json(bytes);
  if (!whole) return whole.error();
  if (!whole->is_object()) return fail(errc::bad_value, "it is no JSON object");

  WorkerAnswer answer;
  for (const json& each : last_of(torchup::member(*whole, "groups"), bytes.size())) {
    if (answer.groups.size() == looked_groups_max) {
      answer.groups_cut = true;
      break;
    }
    AnsweredGroup group = group_of(each);
    if (group.position.name.empty()) {
      answer.problem = std::move(group.position.description);
    } else {
      answer.groups.push_back(std::move(group));
    }
  }
  Members members;
  for (const AnsweredGroup& group : answer.groups) members.emplace(group.position.name, &group.position.ranks);

  for (const json& each : last_of(torchup::member(*whole, "entries"), looked_entries_max)) {
    if (auto entry = entry_of(each, members)) answer.entries.push_back(*std::move(entry));
  }
  leave_out_former(answer);
  std::unordered_map<std::string_view, std::int64_t> newest;
  for (const AnsweredEntry& entry : answer.entries) {
    if (!entry.call.point_to_point) newest[entry.call.group] = entry.call.number;
  }
  for (AnsweredGroup& group : answer.groups) {
    const auto found = newest.find(group.position.name);
    if (group.position.number == unknown && found != newest.end()) group.position.number = found->second;
  }
  return answer;
}

}  // namespace torchup
