#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "rendezvous/core/link/clock_offset.hpp"

/// Who arrives last at collectives, and by how much: one window, one node. lateness_nodes compares nodes,
/// straggler_watch says who is a straggler for good.
namespace torchup {

/// Of one signature: more are not compared, fewer prove nothing and wait for the next window.
inline constexpr std::size_t lateness_newest_max = 256;
inline constexpr std::size_t lateness_least = 20;
/// Of one signature, to other nodes.
inline constexpr std::size_t told_numbers_max = 32;
/// A straggler is last in this share of the collectives, by this share of the signature's period and by this time.
inline constexpr double straggler_last_share = 0.70;
inline constexpr double straggler_late_share = 0.05;
inline constexpr Duration straggler_late_min = std::chrono::milliseconds{1};
/// And it is last more often than one of two equal ranks would be by chance, by so many standard deviations. Of 64
/// collectives and more the share above says more; of 20 it takes 17, for 14 come about every seventeenth time.
inline constexpr double straggler_chance_deviations = 3;
/// The longest of the gaps between a signature's collectives, so many of them and at least one, are no part of its
/// period: an evaluation, a checkpoint.
inline constexpr std::size_t lateness_gaps_to_pause = 32;
/// Times are a stranger's word: between 0 and this, sums and differences of two of them fit.
inline constexpr std::int64_t arrival_ns_max = clock_ns_max;

/// When a rank began a collective.
struct Arrival {
  Collective call = {};                    ///< `created_ns` is the arrival, on the one clock of its node
  std::optional<double> duration_ms = {};  ///< what the device took, waiting for the others included
  friend bool operator==(const Arrival&, const Arrival&) = default;
};
struct RankArrivals {
  Rank rank{0};
  std::vector<Arrival> arrivals = {};  ///< oldest first
  friend bool operator==(const RankArrivals&, const RankArrivals&) = default;
};

/// Collectives that are alike, and so come at one place of a step or a few.
struct CollectiveSignature {
  std::string group = {};
  std::string operation = {};  ///< as recorded: "gloo:all_reduce"
  std::int64_t elements = -1;  ///< of its input; -1: not known
  friend auto operator<=>(const CollectiveSignature&, const CollectiveSignature&) = default;
};

/// How late one rank, or one node, is at the collectives of one signature.
struct Lateness {
  CollectiveSignature signature = {};
  std::string dtype = {};
  std::optional<Rank> rank = {};  ///< nothing: a node as a whole
  std::size_t count = 0;          ///< collectives compared
  std::size_t last = 0;           ///< of them, those at which nobody was later or as late
  Duration late{0};               ///< the median; below 0 for who is early
  Duration period{0};             ///< from one of the signature's collectives to the next
  bool cpu_side = false;          ///< the device may be later still: NCCL's arrival is that of the call
  friend bool operator==(const Lateness&, const Lateness&) = default;
};
/// One window's rule. The numbers may be a stranger's.
[[nodiscard]] bool is_straggler(const Lateness& lateness);

/// When the last local rank began a collective of one signature.
struct LatestArrivals {
  struct Number {
    std::int64_t number = 0;
    std::int64_t latest_ns = 0;
    friend bool operator==(const Number&, const Number&) = default;
  };
  CollectiveSignature signature = {};
  std::string dtype = {};
  std::optional<Rank> only_rank = {};  ///< the group's one member here, where there are no more
  Duration period{0};
  std::vector<Number> numbers = {};  ///< in order
  friend bool operator==(const LatestArrivals&, const LatestArrivals&) = default;
};

struct LatenessWindow {
  std::optional<Lateness> worst = {};           ///< of all ranks and signatures the latest; nothing: none is due
  std::optional<Lateness> newest_worst = {};    ///< likewise of `signatures`, of which windows before have used some
  std::vector<Lateness> ranks = {};             ///< at worst's signature, by rank: for the metric
  std::vector<LatestArrivals> signatures = {};  ///< that have a new collective, also of one rank alone
  friend bool operator==(const LatenessWindow&, const LatenessWindow&) = default;
};

/// One node's windows in one attempt. Pure.
///
/// Compared are collectives that all local ranks of a group have; a local rank belongs to a group when it has any of
/// its collectives. Lateness is the arrival minus the median of the others'; where all have the device's durations, the
/// longest duration minus the own: who comes last waits least. What one window has used no later one uses again, so
/// that three windows are three proofs; a signature with fewer new collectives than lateness_least waits for more.
/// While one waits by which a rank is a straggler, a window in which nobody is says nothing: it would break the row.
/// What is for other nodes does not wait: nodes that waited for themselves would tell in different windows. Where less
/// than told_numbers_max is new, it is the newest so many, and who compares them leaves out what was compared before.
class LatenessMeter {
 public:
  /// A look at all local ranks; a rank is there once.
  LatenessWindow window(std::span<const RankArrivals> ranks);

 private:
  std::map<CollectiveSignature, std::int64_t> used_until_ns_;  ///< of the signatures in the look before
};

/// The middle one; of an even count the mean of the two in the middle. `values` is not empty.
[[nodiscard]] std::int64_t median_of(std::vector<std::int64_t> values);

/// What is later than others by how much, at one collective after the other: the rule for ranks and for nodes.
/// `times[i]` has as many times as there are members, at least 2; the result has one entry a member, with `count`,
/// `last` and `late` alone.
[[nodiscard]] std::vector<Lateness> lateness_of(std::span<const std::vector<std::int64_t>> times);

}  // namespace torchup
