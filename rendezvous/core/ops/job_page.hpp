#pragma once

#include <array>
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
#include "rendezvous/core/ops/time_ledger.hpp"
#include "rendezvous/core/round/job_view.hpp"

namespace torchup {

class JsonObject;

inline constexpr int job_page_schema = 1;
inline constexpr std::size_t incidents_shown_max = 16;
/// Nodes that have gone are remembered for those who ask what has changed since, this many.
inline constexpr std::size_t gone_nodes_max = 1024;
/// Lines for people are cut to this in lists of jobs, and what a failed worker said everywhere: an answer is small.
inline constexpr std::size_t listed_text_bytes_max = 512;
inline constexpr std::size_t shown_text_bytes_max = 4096;
inline constexpr std::size_t order_verbs_max = 16;
/// As JobView has them.
inline constexpr std::array<std::string_view, 12> node_states{"ready",   "seated",   "finished", "stopping",
                                                              "standby", "draining", "drained",  "silent",
                                                              "aside",   "unfit",    "refused",  "missing"};

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
  double steps_per_second = 0;            ///< where there is a step, as the next
  double step_age_s = 0;
  double started_s = 0;  ///< seconds since 1970; 0: nobody has joined
  TimeLedger ledger = {};
  std::optional<Duration> ended_for = {};  ///< since it ended; nothing: it goes on
};

/// One job as those see it who ask for it: `GET /v1/jobs/ID`, its row in `GET /v1/jobs`, and what has changed.
///
/// It is told what the round machine shows (`show`), what agents report and what happened. Each node's text is kept
/// until something of it changes, so what an answer costs is mostly a copy: of 12,500 nodes 3 ms, beside 1 µs for
/// each node whose text is made anew. `prepare` makes them in pieces, for those who must not be away for long.
///
/// Whatever strangers typed (run id, hosts, reasons) is whole in it, as JSON has it; bytes that are no UTF-8 are
/// U+FFFD. `null` and a member that is not there mean the same, as merge patches (RFC 7386) want it. Times are UTC, as
/// in events. Beside the members that the interface promises there is `node_states`, how many nodes are in which state.
///
/// A run id may be used again: with the first sight of another job everything of the one before is forgotten.
class JobPage {
 public:
  /// `host`: the machine where the coordinator is. `pid`: the launcher's, in its own rows alone.
  JobPage(RunId run_id, std::string host, std::optional<std::int64_t> pid = {});

  // What it is told.

  /// Of the program that runs; nothing is known of it until then.
  void set_name(std::string name);
  /// The job as it is now. Once a second is enough: 12,500 nodes cost 3 ms, or 15 ms where all are new. Nodes that are
  /// not in it have gone.
  void show(const JobView& view, const Moment& at);
  /// Of a node that has been shown; of another it is nothing.
  void report(const NodeId& node, NodeReport report, TimePoint now);
  /// One that was recorded: its number among the job's events, and it as EventRings::add takes it.
  void add_incident(std::uint64_t seq, std::string_view incident);
  void count_order(std::string_view verb);

  // What it says.

  /// Brings the text of so many nodes up to date at most. True: nothing is left to do. The others do what is left.
  bool prepare(std::size_t nodes);
  /// `GET /v1/jobs/ID`. `seq`: of the job's newest event.
  [[nodiscard]] std::string snapshot(Right right, const Moment& at, std::uint64_t seq);
  /// Grows with all that a snapshot shows but for the passing of time.
  [[nodiscard]] std::uint64_t revision() const { return revision_; }
  /// A merge patch from a snapshot of that revision, or of a later one, to what it is now; `now`, `seq` and `step` are
  /// in it always. Nothing: too many nodes have gone since, a snapshot is needed.
  [[nodiscard]] std::optional<std::string> changes(Right right, std::uint64_t since, const Moment& at,
                                                   std::uint64_t seq);
  /// Its row in a list of jobs.
  [[nodiscard]] std::string row(const Moment& at, std::uint64_t seq);
  [[nodiscard]] JobNumbers numbers(const Moment& at) const;

  [[nodiscard]] const RunId& run_id() const { return run_id_; }
  /// When it ended; nothing: it has not.
  [[nodiscard]] std::optional<TimePoint> ended_at() const { return ended_at_; }

 private:
  struct Row {
    std::string id;
    JobView::Node seen;
    std::optional<NodeReport> report = {};
    TimePoint reported_at{};
    std::uint64_t sighting = 0;         ///< the newest `show` that had it
    std::uint64_t place_revision = 0;   ///< when what the coordinator knows of it changed last
    std::uint64_t report_revision = 0;  ///< likewise what its agent tells
    std::string place_text = {};        ///< both members of an object, without brackets; empty: to be made
    std::string report_text = {};
  };
  /// A member of the job's object, beside `nodes`.
  struct Member {
    std::string_view name;
    std::string text;
    std::uint64_t revision = 0;
  };
  /// JSON, for those who may see all and for those who may only read.
  struct Told {
    explicit Told(std::string text);
    [[nodiscard]] const std::string& to(Right right) const { return right == Right::control ? whole : cut; }
    std::string whole, cut;
  };
  /// Of all nodes.
  struct Sums {
    std::map<std::string, std::int64_t, std::less<>> nodes = {};
    std::array<std::int64_t, rank_states.size()> ranks = {};
    std::optional<StepReport> steps = {};  ///< `age` is none
    TimePoint newest_step{};               ///< when it ended
    TimeLedger ledger = {};
  };

  void begin_anew();
  [[nodiscard]] bool take_head(const JobView& view, const Moment& at);
  [[nodiscard]] bool see(const JobView::Node& node);
  [[nodiscard]] bool drop_unseen();
  void forget(std::size_t row);
  void keep_ledger(const Row& gone);
  void stale(Row& row, std::string& text);
  [[nodiscard]] const Sums& sums() const;
  [[nodiscard]] bool is_in_round(const Row& row) const;
  void make(Row& row);
  void refresh_members();
  void refresh(std::string_view name, std::string text);
  [[nodiscard]] static std::string verdict_text(const std::optional<Verdict>& verdict);
  void put_passing(JsonObject& out, const Moment& at, std::uint64_t seq) const;
  void put_told(JsonObject& out, Right right, std::uint64_t since) const;
  void put_changed_nodes(JsonObject& out, std::uint64_t since);

  RunId run_id_;
  std::string host_;
  std::optional<std::int64_t> pid_;
  std::string name_;
  JobView view_;  ///< the newest, without nodes
  std::optional<std::int64_t> started_us_, ended_us_;
  std::optional<TimePoint> ended_at_;
  std::map<std::string, std::uint64_t, std::less<>> orders_;
  std::deque<Told> incidents_;
  std::uint64_t incident_count_ = 0;
  std::optional<Told> verdict_;

  std::uint64_t revision_ = 1;
  std::uint64_t incidents_revision_ = 1, verdict_revision_ = 1;
  std::vector<Member> members_;
  std::uint64_t members_made_ = 0;  ///< at which revision they were up to date last
  std::uint64_t sighting_ = 0;
  std::vector<Row> rows_;
  std::unordered_map<std::string, std::size_t> row_of_;  ///< by id
  std::size_t stale_ = 0;                                ///< rows with a text that is to be made
  std::size_t prepared_ = 0;                             ///< where `prepare` goes on
  std::deque<std::pair<std::uint64_t, std::string>> gone_;
  std::uint64_t gone_since_ = 0;                    ///< of what went up to that revision not all is known
  TimeLedger gone_ledger_;                          ///< of nodes that have gone for good
  std::map<std::string, TimeLedger> gone_ledgers_;  ///< of those that may come back, by the agent's name
  mutable std::optional<Sums> sums_;
};

/// `GET /v1/jobs`: `rows` of JobPage::row. It is a merge patch of itself too, for a list is told whole.
[[nodiscard]] std::string jobs_text(const std::vector<std::string>& rows, Right right, const Moment& at);

}  // namespace torchup
