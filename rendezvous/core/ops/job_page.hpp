#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/node_report.hpp"
#include "rendezvous/core/ops/ops_route.hpp"
#include "rendezvous/core/round/job_view.hpp"

namespace torchup {

inline constexpr int job_page_schema = 1;
inline constexpr std::size_t incidents_shown_max = 16;
/// Nodes that have gone are remembered for those who ask what has changed since, this many.
inline constexpr std::size_t gone_nodes_max = 1024;
/// In lists of jobs a line for people is cut to this.
inline constexpr std::size_t listed_text_bytes_max = 512;

/// One instant: by the monotonic clock, and as people tell it.
struct Moment {
  TimePoint now{};
  std::int64_t utc_us = 0;
};

/// Numbers of a job for metrics, which do not become more with its size.
struct JobNumbers {
  std::string run_id = {};
  std::string phase = {};
  std::map<std::string, std::int64_t, std::less<>> nodes = {};    ///< by state
  std::array<std::int64_t, rank_states.size()> ranks = {};        ///< by state
  std::map<std::string, std::uint64_t, std::less<>> orders = {};  ///< by verb
  int world_size = 0, min_nodes = 0, max_nodes = 0;
  std::int64_t round = 0;
  int restarts_left = 0;
  std::uint64_t restarts = 0, membership_changes = 0, incidents = 0;
  std::optional<std::int64_t> step = {};  ///< the newest that a rank has ended
  double steps_per_second = 0;            ///< where there is a step
  double step_age_s = 0;                  ///< likewise
  double started_s = 0;                   ///< seconds since 1970; 0: nobody has joined
  SpentTime spent = {};
};

/// One job as those see it who ask for it: `GET /v1/jobs/ID`, its row in `GET /v1/jobs`, and what has changed.
///
/// It is told what the round machine shows (`show`), what agents report and what happened. Each node's text is kept
/// until something of it changes, so what an answer costs is mostly a copy: of 12,500 nodes 1 to 3 ms, beside 1 µs for
/// each node whose text is made anew. `prepare` makes them in pieces, for those who must not be away for long.
///
/// Whatever strangers typed (run id, hosts, reasons) is whole in it, as JSON has it; bytes that are no UTF-8 are
/// U+FFFD. `null` and a member that is not there mean the same, as merge patches (RFC 7386) want it.
///
/// A run id may be used again: with the first sight of another job everything of the one before is forgotten.
class JobPage {
 public:
  /// `host`: the machine where the coordinator is. `pid`: the launcher's, in its own rows alone.
  JobPage(RunId run_id, std::string host, std::optional<std::int64_t> pid = {});

  // What it is told.

  /// Of the program that runs; nothing is known of it until then.
  void set_name(std::string name);
  /// The job as it is now. At most once a second is enough: 12,500 nodes cost 2 ms. Nodes that are not in it have gone.
  void show(const JobView& view, const Moment& at);
  /// Of a node that has been shown; of another it is nothing.
  void report(const NodeId& node, NodeReport report, TimePoint now);
  /// One that was recorded: its number among the job's events, and JSON objects without line end, whole and as those
  /// see it who may only read.
  void add_incident(std::uint64_t seq, std::string_view whole, std::string_view withheld);
  void count_order(std::string_view verb);

  // What it says.

  /// Brings the text of so many nodes up to date at most. True: nothing is left to do. Not needed before the others.
  bool prepare(std::size_t nodes);
  /// `GET /v1/jobs/ID`. `seq`: of the job's newest event.
  [[nodiscard]] std::string snapshot(Right right, const Moment& at, std::uint64_t seq);
  /// Grows with all that a snapshot shows but for the passing of time.
  [[nodiscard]] std::uint64_t revision() const { return revision_; }
  /// A merge patch from a snapshot of that revision, or of a later one, to now. Nothing: too much has gone since, a
  /// snapshot is needed.
  [[nodiscard]] std::optional<std::string> changes(Right right, std::uint64_t since, const Moment& at,
                                                   std::uint64_t seq);
  /// Its row in a list of jobs.
  [[nodiscard]] std::string row(Right right, const Moment& at, std::uint64_t seq) const;
  [[nodiscard]] JobNumbers numbers(const Moment& at) const;

  [[nodiscard]] const RunId& run_id() const { return run_id_; }
  /// When it ended; nothing: it has not.
  [[nodiscard]] std::optional<TimePoint> ended_at() const { return ended_at_; }
  /// Memory for its nodes and incidents.
  [[nodiscard]] std::size_t held_bytes() const;
};

/// `GET /v1/jobs`: `rows` of JobPage::row.
[[nodiscard]] std::string jobs_text(const std::vector<std::string>& rows, Right right, const Moment& at);

}  // namespace torchup
