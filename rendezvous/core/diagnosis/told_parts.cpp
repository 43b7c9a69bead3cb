#include "rendezvous/core/diagnosis/told_parts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "rendezvous/core/diagnosis/look_parts.hpp"
#include "rendezvous/core/link/wire_fields.hpp"

namespace torchup {
namespace {

/// A set as text, of its stretches so many that it is no longer.
constexpr std::size_t ranks_text_bytes_max = std::size_t{24} << 10;
/// In brief. A verdict has thirteen sets at most, of which mostly two or three are there.
constexpr std::size_t brief_ranks_bytes_max = 96;

std::string text_of(const RankSet& ranks, std::size_t bytes_max) {
  std::string text = to_text(ranks);
  std::size_t end = 0;
  for (std::size_t runs = 0; end < text.size() && runs < rank_runs_max; ++runs) {
    const std::size_t next = std::min(text.find(',', end + 1), text.size());
    if (next > bytes_max) break;
    end = next;
  }
  text.resize(end);
  return text;
}

RankSet cut(const RankSet& ranks, std::size_t bytes_max) {
  auto some = parse_rank_set(text_of(ranks, bytes_max));
  return some ? std::move(*some) : RankSet{};
}

}  // namespace

namespace wire {

constexpr std::int64_t count_max = std::numeric_limits<std::int64_t>::max();

/// As text; the writer's own set is cut to what is told.
void ranks(auto& a, RankSet& set) {
  std::string text = text_of(set, ranks_text_bytes_max);
  a.text("ranks", text, ranks_text_bytes_max);
  auto parsed = parse_rank_set(text);
  a.require(parsed.has_value(), "ranks are no set");
  if (parsed) set = std::move(*parsed);
}
void ranks(auto& a, std::vector<Rank>& list) {
  RankSet set{list};
  ranks(a, set);
  list = set.below(looked_ranks_max);
}
/// Of either sign, unlike durations.
void difference(auto& a, Duration& value) {
  std::int64_t nanoseconds = value.count();
  a.bent_number("a difference of times", nanoseconds, -clock_ns_max, clock_ns_max);
  value = Duration{nanoseconds};
}
/// As nanoseconds, so many at most that each is another number of milliseconds: eleven days.
void milliseconds(auto& a, double& value) {
  constexpr double per_ms = 1e6, ms_max = 1e9;
  constexpr auto ns_max = static_cast<std::int64_t>(ms_max * per_ms);
  std::int64_t nanoseconds = std::isfinite(value) ? std::llround(std::clamp(value, -ms_max, ms_max) * per_ms) : 0;
  a.bent_number("a time", nanoseconds, -ns_max, ns_max);
  value = static_cast<double>(nanoseconds) / per_ms;
}
void maybe_rank(auto& a, std::optional<Rank>& value) {
  maybe(a, value, Rank{0}, [&a](Rank& some) { rank(a, some); });
}
void counted(auto& a, std::size_t& value) {
  auto number = static_cast<std::uint64_t>(value);
  a(number);
  value = number;
}
void at_least_minus_one(auto& a, std::int64_t& value) { a.bent_number("a count", value, std::int64_t{-1}, count_max); }

void fields(auto& a, CollectiveSignature& m) {
  a.text("a group", m.group, look_group_bytes_max);
  a.text("an operation", m.operation, look_operation_bytes_max);
  at_least_minus_one(a, m.elements);
}
void fields(auto& a, Lateness& m) {
  a(m.signature);
  a.text("a type of numbers", m.dtype, look_dtype_bytes_max);
  maybe_rank(a, m.rank);
  counted(a, m.count);
  counted(a, m.last);
  difference(a, m.late);
  a(m.period, m.cpu_side);
}
void fields(auto& a, LatestArrivals& m) {
  a(m.signature);
  a.text("a type of numbers", m.dtype, look_dtype_bytes_max);
  maybe_rank(a, m.only_rank);
  a(m.period);
  a.list("numbers", m.numbers, told_numbers_max, [&a](LatestArrivals::Number& one) { a(one.number, one.latest_ns); });
}
void fields(auto& a, ToldWindow& m) {
  a(m.number, m.clock_error, m.worst);
  a.list("signatures", m.told, told_signatures_max);
  a.list("late ranks", m.late_ranks, late_ranks_told_max, [&a](LateRank& one) {
    rank(a, one.rank);
    difference(a, one.late);
  });
}

void fields(auto& a, OperationSide& m) {
  ranks(a, m.ranks);
  a.text("an operation", m.operation, look_operation_bytes_max);
  a.text("sizes", m.sizes, look_sizes_bytes_max);
  at_least_minus_one(a, m.elements);
  a.text("a type of numbers", m.dtype, look_dtype_bytes_max);
  at_least_minus_one(a, m.bytes);
}
void fields(auto& a, AwaitedCollective& m) {
  a.text("a group", m.group, look_group_bytes_max);
  a.text("a group's description", m.description, look_group_bytes_max);
  a(m.number, m.point_to_point);
  a.text("an operation", m.operation, look_operation_bytes_max);
  a.text("sizes", m.sizes, look_sizes_bytes_max);
  at_least_minus_one(a, m.elements);
  a.text("a type of numbers", m.dtype, look_dtype_bytes_max);
  at_least_minus_one(a, m.bytes);
  ranks(a, m.missing);
  ranks(a, m.waiting);
  a.list("sides", m.operations, sides_told_max);
}
void fields(auto& a, HangVerdict& m) {
  a.choice("a kind of hang", m.kind, HangKind::network, HangKind::busy);
  ranks(a, m.culprits);
  a(m.collective, m.last_step);
  ranks(a, m.unseen);
}

/// Found, with its looks as bytes.
struct PackedFound {
  hang::Found found = {};
  std::vector<std::string> looks = {};
};
void fields(auto& a, PackedFound& m) {
  a(m.found.number, m.found.asked, m.found.verdict, m.found.silence);
  a.choice("an action", m.found.action, HangAction::restart, HangAction::none);
  ranks(a, m.found.ended);
  a.list("looks", m.looks, told_looks_max, [&a](std::string& look) { a.text("a look", look, look_bytes_max); });
  a.later_choice("why nothing is done", m.found.spared, HangSpared::doubtful, HangSpared::nobody);
}
void fields(auto& a, hang::Over& m) { a(m.number, m.after); }
void fields(auto& a, StragglerFound& m) {
  maybe_rank(a, m.rank);
  a.text("a host", m.host, look_host_bytes_max);
  a(m.share_percent);
  milliseconds(a, m.late_ms);
  milliseconds(a, m.step_ms);
  a(m.last_percent);
  a.text("an operation", m.operation, look_operation_bytes_max);
  counted(a, m.count);
  at_least_minus_one(a, m.bytes);
  a(m.cpu_side);
}
void fields(auto& a, StragglerOver& m) {
  maybe_rank(a, m.rank);
  a.text("a host", m.host, look_host_bytes_max);
}

}  // namespace wire

namespace {

wire::PackedFound packed(hang::Found found) {
  wire::PackedFound packed;
  const std::size_t looks = std::min(found.looks.size(), told_looks_max);
  for (RankLook& look : std::span{found.looks}.first(looks))
    packed.looks.push_back(encode_look(fitted(std::move(look))));
  found.looks.clear();
  packed.found = std::move(found);
  return packed;
}

/// What is wrong with a look says nothing of the verdict.
hang::Found unpacked(wire::PackedFound packed) {
  for (const std::string& bytes : packed.looks) {
    if (auto look = decode_look(bytes)) packed.found.looks.push_back(std::move(*look));
  }
  return std::move(packed.found);
}

const hang::Over& packed(const hang::Over& news) { return news; }
const StragglerFound& packed(const StragglerFound& news) { return news; }
const StragglerOver& packed(const StragglerOver& news) { return news; }

template <class T>
Result<std::optional<DiagnosisNews>> read_news(wire::Reader& reader) {
  T news;
  reader.message(news);
  if (reader.error()) return *reader.error();
  if constexpr (std::is_same_v<T, wire::PackedFound>) {
    return std::optional<DiagnosisNews>{unpacked(std::move(news))};
  } else {
    return std::optional<DiagnosisNews>{std::move(news)};
  }
}

/// In the order of DiagnosisNews. Never change one; add at the end.
Result<std::optional<DiagnosisNews>> decode_news(std::string_view bytes) {
  if (bytes.empty()) return fail(errc::bad_frame, "news without a kind");
  wire::Reader reader{bytes.substr(1)};
  switch (static_cast<std::uint8_t>(bytes.front())) {
    case 0:
      return read_news<wire::PackedFound>(reader);
    case 1:
      return read_news<hang::Over>(reader);
    case 2:
      return read_news<StragglerFound>(reader);
    case 3:
      return read_news<StragglerOver>(reader);
    default:
      return std::optional<DiagnosisNews>{};
  }
}

std::string place_of(std::size_t part) {
  wire::Writer place;
  place(static_cast<std::uint32_t>(part));
  return place.take();
}
constexpr std::size_t place_bytes = 4;

/// A proof by itself; or else, where nodes are compared, it says which rank of a late node it is.
const std::optional<Lateness>& told_worst(const LatenessWindow& window, std::span<const std::string> shared_groups) {
  const auto& newest = window.newest_worst;
  if (window.worst && is_straggler(*window.worst)) return window.worst;
  if (!newest || !std::ranges::binary_search(shared_groups, newest->signature.group)) return window.worst;
  return newest;
}

}  // namespace

ToldWindow told_window(std::uint64_t number, const LatenessWindow& window, const ClockOffset::Estimate& clock,
                       std::span<const std::string> shared_groups) {
  ToldWindow told{.number = number,
                  .clock_error = clock.error,
                  .worst = told_worst(window, shared_groups),
                  .told = told_arrivals(window, clock, shared_groups)};
  for (const Lateness& lateness : window.ranks) {
    if (lateness.rank) told.late_ranks.push_back({*lateness.rank, lateness.late});
  }
  std::ranges::stable_sort(told.late_ranks, std::ranges::greater{}, &LateRank::late);
  if (told.late_ranks.size() > late_ranks_told_max) told.late_ranks.resize(late_ranks_told_max);
  return told;
}

std::string encode_window(const ToldWindow& window) {
  wire::Writer writer;
  writer.message(ToldWindow{window});
  return writer.take();
}

Result<ToldWindow> decode_window(std::string_view part) {
  if (part.size() > diagnosis_part_bytes_max) return fail(errc::limit_exceeded, "a node's arrivals are too long");
  ToldWindow window;
  wire::Reader reader{part};
  reader.message(window);
  if (reader.error()) return *reader.error();
  return window;
}

std::vector<std::string> encode_news(const DiagnosisNews& news) {
  wire::Writer writer;
  writer(static_cast<std::uint8_t>(news.index()));
  std::visit([&](auto one) { writer.message(packed(std::move(one))); }, news);
  const std::string bytes = writer.take();
  constexpr std::size_t room = diagnosis_part_bytes_max - place_bytes;
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < bytes.size(); begin += room) {
    parts.push_back(place_of(parts.size()) + bytes.substr(begin, room));
  }
  return parts;
}

Result<std::optional<DiagnosisNews>> NewsReader::add(std::string_view part, bool last) {
  if (part.size() < place_bytes) return fail(errc::bad_frame, "a part of news says nothing");
  std::uint32_t place = 0;
  wire::Reader{part.substr(0, place_bytes)}(place);
  part.remove_prefix(place_bytes);
  if (place == 0) {
    bytes_.clear();
    next_ = 0;
  }
  const bool follows = next_ == place;
  next_.reset();
  if (!follows) return std::optional<DiagnosisNews>{};
  if (part.size() > diagnosis_part_bytes_max - place_bytes || bytes_.size() + part.size() > news_bytes_max) {
    bytes_ = {};
    return fail(errc::limit_exceeded, "news are too long");
  }
  bytes_ += part;
  if (!last) {
    next_ = place + 1;
    return std::optional<DiagnosisNews>{};
  }
  return decode_news(std::exchange(bytes_, {}));
}

std::size_t told_bytes(const std::vector<std::string>& parts) {
  std::size_t bytes = 0;
  for (const std::string& part : parts) bytes += part.size();
  return bytes;
}

hang::Found in_brief(const hang::Found& found, std::size_t bytes) {
  hang::Found brief{.number = found.number,
                    .asked = found.asked,
                    .verdict = found.verdict,
                    .silence = found.silence,
                    .action = found.action,
                    .spared = found.spared};
  if (!brief.verdict) return brief;
  HangVerdict& verdict = *brief.verdict;
  verdict.culprits = cut(RankSet{verdict.culprits}, brief_ranks_bytes_max).below(looked_ranks_max);
  verdict.unseen = cut(verdict.unseen, brief_ranks_bytes_max);
  if (verdict.collective) {
    verdict.collective->missing = cut(verdict.collective->missing, brief_ranks_bytes_max);
    verdict.collective->waiting = cut(verdict.collective->waiting, brief_ranks_bytes_max);
    for (OperationSide& side : verdict.collective->operations) side.ranks = cut(side.ranks, brief_ranks_bytes_max);
  }
  std::size_t taken = told_bytes(encode_news(brief));
  for (const RankLook& look : found.looks) {
    if (!std::ranges::binary_search(verdict.culprits, look.rank)) continue;
    RankLook plain = look;
    plain.groups.clear();
    plain.collectives.clear();
    taken += sizeof(std::uint32_t) + encode_look(plain).size();
    if (taken > bytes) break;
    brief.looks.push_back(std::move(plain));
  }
  return brief;
}

hang::Found with_fewer_looks(const hang::Found& found, std::size_t bytes) {
  hang::Found some = found;
  std::vector<RankLook> looks = std::exchange(some.looks, {});
  const auto is_culprit = [&](const RankLook& look) {
    return found.verdict && std::ranges::binary_search(found.verdict->culprits, look.rank);
  };
  std::stable_partition(looks.begin(), looks.end(), is_culprit);
  std::size_t taken = told_bytes(encode_news(some));
  for (RankLook& look : looks) {
    taken += sizeof(std::uint32_t) + encode_look(fitted(look)).size();
    if (taken > bytes) break;
    some.looks.push_back(std::move(look));
  }
  std::ranges::sort(some.looks, {}, &RankLook::rank);
  return some;
}

hang::Found told_to(const NodeRanks& own, const hang::Found& brief, const hang::Found& found) {
  const auto is_own = [&](Rank rank) {
    return rank >= own.first_rank && rank.value() - own.first_rank.value() < own.workers;
  };
  hang::Found told = brief;
  std::erase_if(told.looks, [&](const RankLook& look) { return is_own(look.rank); });
  for (auto at = std::ranges::lower_bound(found.looks, own.first_rank, {}, &RankLook::rank);
       at != found.looks.end() && is_own(at->rank); ++at) {
    told.looks.push_back(*at);
  }
  std::ranges::sort(told.looks, {}, &RankLook::rank);
  const auto first_ended = std::ranges::lower_bound(found.ended, own.first_rank);
  std::copy_if(first_ended, found.ended.end(), std::back_inserter(told.ended), is_own);
  return told;
}

}  // namespace torchup
