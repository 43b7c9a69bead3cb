#include "rendezvous/core/diagnosis/look_parts.hpp"

#include <algorithm>
#include <cctype>
#include <limits>
#include <unordered_map>

#include "rendezvous/core/diagnosis/program_frames.hpp"
#include "rendezvous/core/link/wire_fields.hpp"

namespace torchup {
namespace wire {

/// Entries of a look's table of texts: the group, operation, sizes and dtype of each collective.
constexpr std::size_t words_max = 4 * look_collectives_max;
constexpr std::int64_t number_max = std::numeric_limits<std::int64_t>::max();

/// A collective whose texts are places in the look's table.
struct PackedCollective {
  std::uint8_t group = 0, operation = 0, sizes = 0, dtype = 0;
  std::int64_t number = 0;
  bool finished = false;
  bool point_to_point = false;
  std::optional<Rank> peer = {};
  std::int64_t elements = -1;
  std::int64_t created_ns = 0;
};

struct PackedLook {
  RankLook plain = {};  ///< without its collectives
  std::vector<std::string> words = {};
  std::vector<PackedCollective> collectives = {};
};

void fields(auto& a, StackFrame& m) {
  a.text("a function", m.function, look_function_bytes_max);
  a.text("a file", m.file, look_file_bytes_max);
  a.bent_number("a line", m.line, 0, std::numeric_limits<int>::max());
}

void fields(auto& a, GroupPosition& m) {
  a.text("a group", m.name, look_group_bytes_max);
  a.text("a group's description", m.description, look_group_bytes_max);
  std::string ranks = to_text(m.ranks);
  if (ranks.size() > look_ranks_bytes_max) ranks.clear();  // longer ones are not known; a text's start is another set
  a.text("a group's ranks", ranks, look_ranks_bytes_max);
  auto parsed = parse_rank_set(ranks);
  a.require(parsed.has_value(), "a group's ranks are no set");
  if (parsed) m.ranks = std::move(*parsed);
  a.bent_number("a collective's number", m.number, std::int64_t{-1}, number_max);
}

void fields(auto& a, PackedCollective& m) {
  a(m.group, m.operation, m.sizes, m.dtype);
  a.bent_number("a collective's number", m.number, std::int64_t{0}, number_max);
  a(m.finished, m.point_to_point);
  maybe(a, m.peer, Rank{0}, [&a](Rank& value) { a.bent_number("a peer", value, 0, world_size_max - 1); });
  a.bent_number("a collective's elements", m.elements, std::int64_t{-1}, number_max);
  a(m.created_ns);
}

void fields(auto& a, PackedLook& m) {
  RankLook& look = m.plain;
  rank(a, look.rank);
  a.bent_number("a local rank", look.local_rank, 0, local_workers_max - 1);
  a.text("a host", look.host, look_host_bytes_max);
  a.bent_number("a process id", look.pid, std::int64_t{0}, pid_max);
  a(look.seen);
  auto state = static_cast<std::uint8_t>(look.state);
  a(state);
  look.state = std::isalpha(state) != 0 ? static_cast<char>(state) : state_unknown;
  a(look.traced, look.debugged, look.moving, look.progressed, look.raised_ns, look.raised_consequence, look.in_p2p);
  a.text("a kernel's text", look.kernel, look_kernel_bytes_max);
  a.list("frames", look.frames, look_frames_max);
  a.list("native frames", look.native, look_native_frames_max,
         [&a](std::string& frame) { a.text("a native frame", frame, look_native_bytes_max); });
  a(look.groups_known, look.groups_cut);
  a.list("groups", look.groups, look_groups_max);
  a.list("words", m.words, words_max, [&a](std::string& word) { a.text("a word", word, look_sizes_bytes_max); });
  a.list("collectives", m.collectives, look_collectives_max);
  a(look.step, look.beats);
}

}  // namespace wire

namespace {

using wire::PackedCollective;
using wire::PackedLook;

/// The text's place in `words`, where it is put if it is new. 64 collectives have 256 texts at most, so a byte counts
/// them.
class WordTable {
 public:
  explicit WordTable(std::vector<std::string>& words) : words_{words} {}
  std::uint8_t place(const std::string& text, std::size_t bytes_max) {
    const std::string cut{cut_text(text, bytes_max)};
    const auto [entry, is_new] = places_.try_emplace(cut, static_cast<std::uint8_t>(words_.size()));
    if (is_new) words_.push_back(cut);
    return entry->second;
  }

 private:
  std::vector<std::string>& words_;
  std::unordered_map<std::string, std::uint8_t> places_;
};

PackedLook packed(RankLook look) {
  PackedLook packed;
  WordTable words{packed.words};
  look.collectives.resize(std::min(look.collectives.size(), look_collectives_max));
  for (const Collective& call : look.collectives) {
    packed.collectives.push_back({.group = words.place(call.group, look_group_bytes_max),
                                  .operation = words.place(call.operation, look_operation_bytes_max),
                                  .sizes = words.place(call.sizes, look_sizes_bytes_max),
                                  .dtype = words.place(call.dtype, look_dtype_bytes_max),
                                  .number = call.number,
                                  .finished = call.finished,
                                  .point_to_point = call.point_to_point,
                                  .peer = call.peer,
                                  .elements = call.elements,
                                  .created_ns = call.created_ns});
  }
  look.collectives.clear();
  packed.plain = std::move(look);
  return packed;
}

/// A place beyond the table is no error worth a look: that text is empty.
RankLook unpacked(PackedLook packed) {
  RankLook look = std::move(packed.plain);
  const auto word = [&](std::uint8_t place, std::size_t bytes_max) {
    if (place >= packed.words.size()) return std::string{};
    return std::string{cut_text(packed.words[place], bytes_max)};
  };
  for (const PackedCollective& call : packed.collectives) {
    look.collectives.push_back({.group = word(call.group, look_group_bytes_max),
                                .number = call.number,
                                .finished = call.finished,
                                .point_to_point = call.point_to_point,
                                .peer = call.peer,
                                .operation = word(call.operation, look_operation_bytes_max),
                                .sizes = word(call.sizes, look_sizes_bytes_max),
                                .elements = call.elements,
                                .dtype = word(call.dtype, look_dtype_bytes_max),
                                .created_ns = call.created_ns});
  }
  return look;
}

/// Of any length.
Result<RankLook> read_look(std::string_view bytes) {
  PackedLook packed;
  wire::Reader reader{bytes};
  reader.message(packed);
  if (reader.error()) return *reader.error();
  return unpacked(std::move(packed));
}

/// Cuts what is too many; what is unfinished stays before what is finished, the newest before older.
void order_collectives(RankLook& look) {
  std::ranges::stable_sort(look.collectives, [](const Collective& left, const Collective& right) {
    if (left.finished != right.finished) return !left.finished;
    return left.created_ns > right.created_ns;
  });
  if (look.collectives.size() > look_collectives_max) look.collectives.resize(look_collectives_max);
}

void keep(auto& items, std::size_t count) {
  if (items.size() > count) items.resize(count);
}

/// What is left of `count` when `excess` bytes are to go, but `least`: one at a time where it may be enough.
std::size_t fewer(std::size_t count, std::size_t least, std::size_t excess) {
  constexpr std::size_t bytes_each = 256;  // more than a collective takes, or a group without its members
  return count - std::min(count - least, 1 + excess / bytes_each);
}

/// Whether there was anything to clear.
bool clear_where(std::vector<GroupPosition>& groups, auto member, const auto& holds) {
  bool any = false;
  for (GroupPosition& group : groups) {
    if (!holds(group)) continue;
    group.*member = {};
    any = true;
  }
  return any;
}

/// Takes away the least useful that is still there, so much of it as may be `excess` bytes; false: nothing is left, and
/// four calls and a group are shorter than a look may be, whatever their texts are.
bool shorten(RankLook& look, std::size_t excess) {
  constexpr std::size_t told_frames = 6;  // as many as a page shows
  const auto halve = [](auto& items) {
    items.resize(items.size() / 2);
    return true;
  };
  if (look.native.size() > 2) return halve(look.native);
  if (!look.collectives.empty() && look.collectives.back().finished) {
    const auto unfinished = std::ranges::count(look.collectives, false, &Collective::finished);
    return keep(look.collectives, fewer(look.collectives.size(), static_cast<std::size_t>(unfinished), excess)), true;
  }
  if (look.frames.size() > told_frames) return keep_frames(look.frames, told_frames), true;
  if (!look.native.empty()) return look.native.clear(), true;
  const auto has_ranks = [](const GroupPosition& group) { return !group.ranks.empty(); };
  const auto has_many_runs = [](const GroupPosition& group) { return group.ranks.runs().size() > 2; };
  // What such a group is, those tell who are in a call of it.
  const auto is_told_by_others = [&](const GroupPosition& group) {
    return std::ranges::find(look.collectives, group.name, &Collective::group) == look.collectives.end();
  };
  const auto is_described = [&](const GroupPosition& group) {
    return !group.description.empty() && is_told_by_others(group);
  };
  const auto has_others_ranks = [&](const GroupPosition& group) {
    return has_ranks(group) && is_told_by_others(group);
  };
  if (clear_where(look.groups, &GroupPosition::description, is_described)) return true;
  if (look.frames.size() > 2) return keep_frames(look.frames, 2), true;
  if (clear_where(look.groups, &GroupPosition::ranks, has_others_ranks)) return true;
  if (look.groups.size() > 1 && is_told_by_others(look.groups.back())) {
    const auto own = std::ranges::find_if_not(look.groups.rbegin(), look.groups.rend(), is_told_by_others);
    const auto least = std::max<std::ptrdiff_t>(look.groups.rend() - own, 1);
    keep(look.groups, fewer(look.groups.size(), static_cast<std::size_t>(least), excess));
    return look.groups_cut = true;
  }
  if (clear_where(look.groups, &GroupPosition::ranks, has_many_runs)) return true;
  if (look.collectives.size() > 4) return keep(look.collectives, fewer(look.collectives.size(), 4, excess)), true;
  if (clear_where(look.groups, &GroupPosition::ranks, has_ranks)) return true;
  if (look.groups.size() > 1) {
    keep(look.groups, fewer(look.groups.size(), 1, excess));
    return look.groups_cut = true;
  }
  if (!look.kernel.empty()) return look.kernel.clear(), true;
  if (!look.frames.empty()) return look.frames.pop_back(), true;
  // Who hears of the rank knows its node from its place in the round.
  if (!look.host.empty()) return look.host.clear(), true;
  const auto has_description = [](const GroupPosition& group) { return !group.description.empty(); };
  if (clear_where(look.groups, &GroupPosition::description, has_description)) return true;
  return false;
}

}  // namespace

RankLook fitted(RankLook look) {
  keep(look.native, look_native_frames_max);
  keep_frames(look.frames, look_frames_max);
  if (look.groups.size() > look_groups_max) {
    look.groups.resize(look_groups_max);
    look.groups_cut = true;
  }
  order_collectives(look);
  // A writer cuts texts and bends numbers: what comes back is what others will read.
  if (auto cut = read_look(encode_look(look))) look = std::move(*cut);
  for (std::size_t bytes = encode_look(look).size(); bytes > look_bytes_max; bytes = encode_look(look).size()) {
    if (!shorten(look, bytes - look_bytes_max)) break;
  }
  return look;
}

RankLook without_stack(RankLook look) {
  const auto told = std::ranges::find_if(look.frames, is_in_collective);
  look.frames = told != look.frames.end() ? std::vector{*told} : std::vector<StackFrame>{};
  look.native.clear();
  look.kernel.clear();
  return look;
}

std::string encode_look(const RankLook& look) {
  wire::Writer writer;
  writer.message(packed(look));
  return writer.take();
}

Result<RankLook> decode_look(std::string_view bytes) {
  if (bytes.size() > look_bytes_max) return fail(errc::limit_exceeded, "a look at a rank is too long");
  return read_look(bytes);
}

std::vector<std::string> pack_looks(std::span<const RankLook> looks) {
  std::vector<std::string> parts(1);
  for (const RankLook& look : looks) {
    const std::string bytes = encode_look(fitted(look));
    wire::Writer length;
    length(static_cast<std::uint32_t>(bytes.size()));
    const std::string front = length.take();
    if (parts.back().size() + front.size() + bytes.size() > look_part_bytes_max) parts.emplace_back();
    parts.back() += front + bytes;
  }
  return parts;
}

std::size_t look_parts_max(int workers) {
  constexpr std::size_t in_one = look_part_bytes_max / (look_bytes_max + sizeof(std::uint32_t));
  return 1 + static_cast<std::size_t>(std::clamp(workers, 1, local_workers_max) - 1) / in_one;
}

Result<std::vector<std::string_view>> split_part(std::string_view part) {
  constexpr std::size_t length_bytes = 4;
  if (part.size() > look_part_bytes_max) return fail(errc::limit_exceeded, "a part of an answer is too long");
  std::vector<std::string_view> looks;
  while (!part.empty()) {
    if (part.size() < length_bytes) return fail(errc::bad_frame, "a look's length is cut off");
    std::uint32_t length = 0;
    wire::Reader{part.substr(0, length_bytes)}(length);
    part.remove_prefix(length_bytes);
    if (length > look_bytes_max) return fail(errc::limit_exceeded, "a look at a rank is too long");
    if (length > part.size()) return fail(errc::bad_frame, "a look is shorter than its length");
    looks.push_back(part.substr(0, length));
    part.remove_prefix(length);
  }
  return looks;
}

Result<std::vector<RankLook>> unpack_looks(std::string_view part) {
  const auto split = split_part(part);
  if (!split) return split.error();
  std::vector<RankLook> looks;
  for (const std::string_view bytes : *split) {
    if (auto look = decode_look(bytes)) looks.push_back(std::move(*look));
  }
  return looks;
}

}  // namespace torchup
