#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/diagnosis/hang_watch.hpp"
#include "rendezvous/core/diagnosis/lateness_nodes.hpp"
#include "rendezvous/core/diagnosis/straggler_watch.hpp"

/// What agents tell of arrivals, and what the coordinator tells of what it has found, as bytes: the parts of Arrivals
/// and HangTold (core/link/messages), of the structures that agent_codec is made of. Who does not know a field passes
/// over it, who misses one has its default.
namespace torchup {

// Agent to coordinator.

/// Ranks whose lateness a node tells for people to see it as a number; those that are latest.
inline constexpr std::size_t late_ranks_told_max = 1024;

struct LateRank {
  Rank rank{0};
  Duration late{0};  ///< below 0 for who is early
  friend bool operator==(const LateRank&, const LateRank&) = default;
};
/// One node's window: the answer to an Examine that asks for arrivals.
struct ToldWindow {
  std::uint64_t number = 0;  ///< as in Examine
  Duration clock_error{0};
  std::optional<Lateness> worst = {};     ///< of its own ranks
  std::vector<LatestArrivals> told = {};  ///< told_signatures_max at most
  std::vector<LateRank> late_ranks = {};  ///< at worst's signature
  friend bool operator==(const ToldWindow&, const ToldWindow&) = default;
};
/// Of the window of a node whose clock is `clock` from the coordinator's; told_arrivals says what is told of arrivals.
[[nodiscard]] ToldWindow told_window(std::uint64_t number, const LatenessWindow& window,
                                     const ClockOffset::Estimate& clock, std::span<const std::string> shared_groups);

/// Arrivals::part: always one. What is too many is cut.
[[nodiscard]] std::string encode_window(const ToldWindow& window);
/// Errors: errc::limit_exceeded when the part, or a text or list in it, is too long; errc::bad_frame when fields are
/// cut off or out of their ranges.
[[nodiscard]] Result<ToldWindow> decode_window(std::string_view part);

// Coordinator to agent.

using DiagnosisNews = std::variant<hang::Found, hang::Over, StragglerFound, StragglerOver>;

/// Of all parts of one piece of news together.
inline constexpr std::size_t news_bytes_max = std::size_t{4} << 20;

/// HangTold::part, one or more. Of a set of ranks that is too many stretches the first are told.
[[nodiscard]] std::vector<std::string> encode_news(const DiagnosisNews& news);

/// Of all of them.
[[nodiscard]] std::size_t told_bytes(const std::vector<std::string>& parts);

/// Joins the parts of HangTold. Each says its place among the others: what was lost with a connection is no beginning
/// of what comes by the next one.
class NewsReader {
 public:
  /// The news that this part is the end of; nothing: there is more to come, or its beginning was not heard, or only a
  /// newer release knows what it is.
  /// Errors: errc::limit_exceeded beyond diagnosis_part_bytes_max, news_bytes_max, or where a text or list is too long;
  /// errc::bad_frame for anything else. What comes afterwards is read all the same.
  [[nodiscard]] Result<std::optional<DiagnosisNews>> add(std::string_view part, bool last);

 private:
  std::string bytes_;
  std::optional<std::uint32_t> next_;  ///< the place that comes now; nothing: the first of others
};

/// Of one look, what every member is told: the verdict, and of the culprits' looks, without what only judges ask for,
/// those that fit into `bytes` with it. Sets of ranks are cut so that the verdict alone takes 4 KiB at most.
[[nodiscard]] hang::Found in_brief(const hang::Found& found, std::size_t bytes);
/// The same with so many looks as fit into `bytes` beside the verdict: first those at culprits, then at the lowest
/// ranks.
[[nodiscard]] hang::Found with_fewer_looks(const hang::Found& found, std::size_t bytes);
/// The same with what concerns one member: the looks at its own ranks, and which of them are ended.
[[nodiscard]] hang::Found told_to(const NodeRanks& own, const hang::Found& brief, const hang::Found& found);

}  // namespace torchup
