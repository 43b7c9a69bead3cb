#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/node_report.hpp"

namespace torchup {

/// What a rank's time is spent on: an index into spent_words. launcher/core/record/time_fold says how it is found.
enum class Spent : std::uint8_t {
  useful,     ///< steps that were done once, without waiting for slower ranks
  waiting,    ///< for nodes: no round
  startup,    ///< from the first round to the first step's end
  failure,    ///< from the last step before a failure to the first one after it: detection, stop, new start
  change,     ///< the same of a membership change
  redone,     ///< steps that a later attempt did once more
  hang,       ///< from the last step until somebody said that it hangs
  straggler,  ///< waiting for slower ranks
  shutdown,   ///< from the last step to the end of the job
};

/// By what the end of a start and the end of running are known.
enum class LedgerBasis : std::uint8_t {
  processes,  ///< no rank reported steps: a rank runs as long as its process
  steps,      ///< all that ran did
  mixed,
};
[[nodiscard]] std::string_view to_text(LedgerBasis basis);
/// Of two parts of a job.
[[nodiscard]] LedgerBasis basis_of_both(LedgerBasis left, LedgerBasis right);

/// Where the time of a job's ranks has gone: nine parts, in rank microseconds. What is known of a job is their sum, so
/// they cannot but sum to it.
class TimeLedger {
 public:
  /// No part grows beyond that, so that the sum of all fits.
  static constexpr std::int64_t part_max_us = std::int64_t{1} << 59;

  [[nodiscard]] std::int64_t us(Spent part) const { return parts_us_[static_cast<std::size_t>(part)]; }
  /// Negative times are none.
  void add(Spent part, std::int64_t time_us);
  /// Takes from one part for another what there is, `time_us` at most.
  void move(Spent from, Spent to, std::int64_t time_us);
  TimeLedger& operator+=(const TimeLedger& other);
  [[nodiscard]] std::int64_t rank_us() const;
  /// As agents report it.
  [[nodiscard]] SpentTime spent() const;
  friend bool operator==(const TimeLedger&, const TimeLedger&) = default;

  LedgerBasis basis = LedgerBasis::processes;

 private:
  std::array<std::int64_t, spent_words.size()> parts_us_{};
};

/// `{"rank_seconds": …, "useful": …, …, "basis": "steps"}`: seconds with six digits behind the point.
[[nodiscard]] std::string ledger_json(const TimeLedger& ledger);

/// What people are told beside the times; nothing: it is not known, and not spoken of.
struct LedgerCounts {
  std::optional<std::int64_t> ranks = {};
  std::int64_t lasted_us = 0;                     ///< the job
  std::optional<std::int64_t> restarts = {};      ///< after failures
  std::optional<std::int64_t> changes = {};       ///< of the membership
  std::optional<std::int64_t> redone_steps = {};  ///< by the rank with the most of them in each attempt
  std::optional<std::int64_t> hangs = {};         ///< attempts in which one was found
  friend bool operator==(const LedgerCounts&, const LedgerCounts&) = default;
};

/// A head line, the four largest losses, and the others in one line: without line ends and without a name in front.
[[nodiscard]] std::vector<std::string> ledger_lines(const TimeLedger& ledger, const LedgerCounts& counts);

}  // namespace torchup
