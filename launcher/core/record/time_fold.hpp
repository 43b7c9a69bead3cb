#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "launcher/core/record/time_event.hpp"
#include "rendezvous/core/ops/time_ledger.hpp"

namespace torchup {

/// Where the time of a job's ranks goes, by the events of one node or of several: a fold. A value.
///
/// For each rank of a node the time from `job_started` to `job_ended` is cut at: P, a round is complete; R, the rank's
/// first step has ended, or where it reports none it has started; Q, its last step has ended, or where it reports none
/// it has exited or the stop has begun; H, somebody says that ranks hang; E, the attempt has ended.
///
///     start … P   waiting              P … R   startup, or the cause of the end of the attempt before
///     R … Q       running              Q … H   hang, where that is later
///     … E         the cause of the end of this one
///     E … P       the same; from the first word of waiting on: waiting
///     E … end     of the last one: failure where the job has failed, else shutdown
///
/// The cause is failure where the next round has a higher restart count, else change. Of running the steps that a later
/// attempt did again are redone, at the mean pace of the attempt, and what the ranks of a round waited longer than the
/// one that waited least is straggler, as far as it was not redone. The rest is useful.
///
/// A host that starts again behind the end of its job begins another one, and what was known of it is forgotten; what
/// has another run id than the newest node does not count. A host may have several lives in one job: a launcher that
/// was killed, and started again. Rounds are counted from 0 again where those who made them began anew: what stands
/// behind in a host's events is later, whatever its number. Of a node's attempts those beyond `kept` are settled by
/// what is known then, each node for itself.
class TimeFold {
 public:
  static constexpr std::size_t attempts_kept_max = 64;

  explicit TimeFold(std::size_t kept = attempts_kept_max) : kept_{kept} {}

  void add(const TimeEvent& event);

  /// `now_us`: of the monotonic clock, of a job that may still run: as if it ended then, and who has not exited has run
  /// since its last step. Without it such a job ends with its last event.
  [[nodiscard]] TimeLedger ledger(std::optional<std::int64_t> now_us = {}) const;
  [[nodiscard]] LedgerCounts counts(std::optional<std::int64_t> now_us = {}) const;

 private:
  struct Rank {
    std::optional<std::int64_t> started, exited;
    std::optional<time_event::Steps> steps;
  };
  /// How often rounds have been counted from 0 again before it, and its number.
  using RoundKey = std::pair<std::int64_t, std::int64_t>;
  struct Attempt {
    time_event::RoundCompleted round;
    RoundKey key = {};
    std::int64_t completed = 0;                           ///< P
    std::optional<std::int64_t> stopping, hung, ended{};  ///< H and E among them
    std::optional<std::int64_t> waits = {};               ///< since when, behind E
    std::optional<time_event::RoundFollows> follows = {};
    bool failed = false;             ///< a worker has
    bool hung_worker = false;        ///< `hung` is of a worker's own, which counts before the job's
    std::map<int, Rank> ranks = {};  ///< that have started, by local rank
  };
  struct Totals {
    TimeLedger ledger = {};
    LedgerCounts counts = {.ranks = 0, .restarts = 0, .changes = 0, .redone_steps = 0, .hangs = 0};
    std::optional<LedgerBasis> basis = {};  ///< of the rounds in which a rank has run; nothing: there is none
  };
  struct Node {
    std::string host, run_id;
    std::optional<RoundKey> newest_round = {};  ///< of the host in this job
    std::int64_t ranks = 0;
    std::int64_t started = 0;
    std::int64_t seen = 0;              ///< the newest event
    std::optional<std::int64_t> ended;  ///< the job
    bool failed = false;                ///< likewise
    std::deque<Attempt> attempts = {};
    std::optional<std::int64_t> first_round = {};
    Spent cause_before = Spent::startup;  ///< of the first of `attempts`
    Totals settled = {};                  ///< what came before them
  };
  /// The ranks of one round together.
  struct Round {
    double running = 0, redone = 0, waited = 0, waited_least = 0;  ///< µs: of a file that anybody may have written
    double reported = 0, unreported = 0;                           ///< ranks that ran
    std::int64_t redone_steps = 0;
    bool hung = false;
  };
  using Rounds = std::map<RoundKey, Round>;
  /// One attempt, and what is around it.
  struct Span {
    const Attempt& attempt;
    std::int64_t begin = 0, end = 0;              ///< P and E
    Spent before = Spent::startup;                ///< what its beginning counts as
    Spent cause = Spent::shutdown;                ///< of its end
    bool runs = false;                            ///< it has not ended
    std::optional<std::int64_t> done_again = {};  ///< the least first step of any later attempt
  };

  struct Apply;
  static void settle(Node& node);
  [[nodiscard]] static std::int64_t end_of(const Node& node, std::optional<std::int64_t> now_us);
  [[nodiscard]] static Spent cause_of(const Node& node, std::size_t index);
  static void charge(const Node& node, std::size_t index, std::int64_t end, std::optional<std::int64_t> done_again,
                     TimeLedger& ledger, Round& round);
  static void charge_rank(const Rank& rank, const Span& span, TimeLedger& ledger, Round& round);
  static void share_out(const Round& round, Totals& totals);
  [[nodiscard]] Totals totals(std::optional<std::int64_t> now_us) const;

  std::size_t kept_;
  std::deque<Node> nodes_;  ///< lives of nodes; the newest one of a host stands last
  std::string run_id_;      ///< of the newest
};

}  // namespace torchup
