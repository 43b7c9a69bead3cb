#include "rendezvous/core/ops/job_page.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/core/membership/ended_jobs.hpp"
#include "rendezvous/core/ops/event_ring.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

/// As many letters as the node has workers, and a time that can be, whatever came.
void set_right(NodeReport& report, int local_world_size) {
  report.ranks.resize(static_cast<std::size_t>(local_world_size), '?');
  for (char& letter : report.ranks) letter = rank_states[rank_state_index(letter)].letter;
  if (report.steps) report.steps->age = std::clamp(report.steps->age, Duration{0}, duration_max);
}

TimeLedger ledger_of(const NodeReport& report) {
  TimeLedger ledger;
  ledger.basis = report.steps ? LedgerBasis::steps : LedgerBasis::processes;
  for (std::size_t part = 0; part < report.spent.size(); ++part) {
    // A stranger's word: as much of it as fits.
    ledger.add(static_cast<Spent>(part), std::min(report.spent[part], TimeLedger::part_max_us / 1000) * 1000);
  }
  return ledger;
}

/// Half of the nodes are no faster.
std::int64_t median(std::vector<std::int64_t>& paces) {
  if (paces.empty()) return 0;
  const auto middle = paces.begin() + static_cast<std::ptrdiff_t>(paces.size() / 2);
  std::nth_element(paces.begin(), middle, paces.end());
  return *middle;
}

}  // namespace

JobPage::JobPage(RunId run_id, std::string host, std::optional<std::int64_t> pid)
    : run_id_{std::move(run_id)}, host_{std::move(host)}, pid_{pid} {}

void JobPage::set_name(std::string name) {
  if (name == name_) return;
  name_ = std::move(name);
  ++revision_;
}

void JobPage::begin_anew() {
  started_us_.reset();
  ended_us_.reset();
  ended_at_.reset();
  orders_.clear();
  incidents_.clear();
  incident_count_ = 0;
  incidents_revision_ = ++revision_;
  while (!rows_.empty()) forget(rows_.size() - 1);
  gone_ledger_ = {};
  gone_ledgers_.clear();
}

void JobPage::show(const JobView& view, const Moment& at) {
  if (ended_at_ && view.phase != "ended") begin_anew();
  const std::uint64_t before = revision_++;  // of all that is seen to be different now
  ++sighting_;
  bool changed = take_head(view, at);
  for (const JobView::Node& node : view.nodes) changed = see(node) || changed;
  changed = drop_unseen() || changed;
  if (!started_us_ && !rows_.empty() && !view.by_node) started_us_ = at.utc_us;
  if (changed) {
    sums_.reset();
  } else {
    revision_ = before;
  }
}

/// All but the nodes. True: it is not as it was.
bool JobPage::take_head(const JobView& view, const Moment& at) {
  JobView head{.phase = view.phase,
               .round = view.round,
               .min_nodes = view.min_nodes,
               .max_nodes = view.max_nodes,
               .restart_count = view.restart_count,
               .membership_changes = view.membership_changes,
               .max_restarts = view.max_restarts,
               .world_size = view.world_size,
               .master = view.master,
               .waits_for = view.waits_for,
               .last = view.last,
               .more_missing = view.more_missing,
               .verdict = view.verdict};
  if (head == view_) return false;
  if (head.verdict != view_.verdict) {
    verdict_.emplace(verdict_text(head.verdict));
    verdict_revision_ = revision_;
  }
  view_ = std::move(head);
  if (!ended_at_ && view_.phase == "ended") {
    ended_us_ = at.utc_us;
    ended_at_ = at.now;
  }
  return true;
}

/// True: it is new, or not as it was.
bool JobPage::see(const JobView::Node& node) {
  // Only members have ids. Two hosts that are no names might be one as JSON has them, and of torchrun's agents several
  // may be on a host.
  const std::string name = node.node.empty() ? printable(node.host) : node.node;
  std::string id = name;
  auto found = row_of_.find(id);
  for (int more = 2; found != row_of_.end() && rows_[found->second].sighting == sighting_; ++more) {
    id = name + " (" + std::to_string(more) + ")";
    found = row_of_.find(id);
  }
  if (found == row_of_.end()) {
    found = row_of_.emplace(id, rows_.size()).first;
    rows_.push_back({.id = std::move(id),
                     .seen = node,
                     .sighting = sighting_,
                     .place_revision = revision_,
                     .report_revision = revision_});
    ++stale_;
    return true;
  }
  Row& row = rows_[found->second];
  row.sighting = sighting_;
  if (row.seen == node) return false;
  if (row.seen.local_world_size != node.local_world_size) {
    if (row.report) set_right(*row.report, node.local_world_size);
    stale(row, row.report_text);
    row.report_revision = revision_;
  }
  row.seen = node;
  stale(row, row.place_text);
  row.place_revision = revision_;
  return true;
}

void JobPage::stale(Row& row, std::string& text) {
  if (!row.place_text.empty() && !row.report_text.empty()) ++stale_;
  text.clear();
}

bool JobPage::drop_unseen() {
  const std::size_t before = rows_.size();
  for (std::size_t row = before; row-- > 0;) {
    if (rows_[row].sighting != sighting_) forget(row);
  }
  return rows_.size() < before;
}

void JobPage::forget(std::size_t at) {
  Row& row = rows_[at];
  if (row.place_text.empty() || row.report_text.empty()) --stale_;
  if (row.report) keep_ledger(row);
  gone_.emplace_back(revision_, row.id);
  if (gone_.size() > gone_nodes_max) {
    gone_since_ = gone_.front().first;
    gone_.pop_front();
  }
  row_of_.erase(row.id);
  if (at + 1 != rows_.size()) {
    row = std::move(rows_.back());
    row_of_.at(row.id) = at;
  }
  rows_.pop_back();
}

/// Agents report what they have spent since they began, and may come back with it.
void JobPage::keep_ledger(const Row& gone) {
  gone_ledgers_.insert_or_assign(agent_name(NodeId{gone.id}), ledger_of(*gone.report));
  if (gone_ledgers_.size() <= gone_nodes_max) return;
  gone_ledger_ += gone_ledgers_.begin()->second;
  gone_ledgers_.erase(gone_ledgers_.begin());
}

void JobPage::report(const NodeId& node, NodeReport report, TimePoint now) {
  const auto found = row_of_.find(node.value());
  if (found == row_of_.end()) return;
  Row& row = rows_[found->second];
  set_right(report, row.seen.local_world_size);
  const bool shown = row.report && row.report->ranks == report.ranks &&
                     row.report->steps.has_value() == report.steps.has_value() &&
                     (!report.steps || row.report->steps->most == report.steps->most);
  row.report = std::move(report);
  row.reported_at = now;
  if (!gone_ledgers_.empty()) gone_ledgers_.erase(agent_name(node));
  sums_.reset();
  ++revision_;
  if (shown) return;
  stale(row, row.report_text);
  row.report_revision = revision_;
}

void JobPage::add_incident(std::uint64_t seq, std::string_view incident) {
  incidents_.emplace_back(numbered_event(seq, incident));
  if (incidents_.size() > incidents_shown_max) incidents_.pop_front();
  ++incident_count_;
  incidents_revision_ = ++revision_;
}

void JobPage::count_order(std::string_view verb) {
  if (orders_.size() < order_verbs_max || orders_.contains(verb)) ++orders_[std::string{verb}];
}

/// Where there is a round, its ranks are the job's.
bool JobPage::is_in_round(const Row& row) const { return view_.world_size == 0 || row.seen.group_rank.has_value(); }

const JobPage::Sums& JobPage::sums() const {
  if (sums_) return *sums_;
  Sums all;
  std::vector<std::int64_t> paces;
  all.ledger = gone_ledger_;
  for (const auto& [agent, ledger] : gone_ledgers_) all.ledger += ledger;
  for (const Row& row : rows_) {
    ++all.nodes[row.seen.state];
    if (row.report) all.ledger += ledger_of(*row.report);
    if (!is_in_round(row)) continue;
    if (!row.report) {
      all.ranks.back() += row.seen.local_world_size;
      continue;
    }
    for (const char letter : row.report->ranks) ++all.ranks[rank_state_index(letter)];
    const auto& steps = row.report->steps;
    if (!steps) continue;
    const TimePoint ended = row.reported_at - steps->age;
    all.newest_step = all.steps ? std::max(all.newest_step, ended) : ended;
    if (!all.steps) all.steps = StepReport{.least = steps->least, .most = steps->most};
    all.steps->least = std::min(all.steps->least, steps->least);
    all.steps->most = std::max(all.steps->most, steps->most);
    paces.push_back(steps->milli_per_second);
  }
  if (all.steps) all.steps->milli_per_second = median(paces);
  return sums_.emplace(std::move(all));
}

JobNumbers JobPage::numbers(const Moment& at) const {
  const Sums& all = sums();
  JobNumbers numbers{.run_id = run_id_.value(),
                     .phase = view_.phase,
                     .nodes = all.nodes,
                     .ranks = all.ranks,
                     .orders = orders_,
                     .world_size = view_.world_size,
                     .min_nodes = view_.min_nodes,
                     .max_nodes = view_.max_nodes,
                     .round = view_.round.value(),
                     .restarts_left = std::max(0, view_.max_restarts - view_.restart_count),
                     .restarts = static_cast<std::uint64_t>(view_.restart_count),
                     .membership_changes = static_cast<std::uint64_t>(view_.membership_changes),
                     .incidents = incident_count_,
                     .started_s = static_cast<double>(started_us_.value_or(0)) / 1e6,
                     .ledger = all.ledger};
  if (ended_at_) numbers.ended_for = at.now - *ended_at_;
  numbers.nodes["missing"] += static_cast<std::int64_t>(view_.more_missing);
  if (all.steps) {
    numbers.step = all.steps->most;
    numbers.steps_per_second = static_cast<double>(all.steps->milli_per_second) / 1000;
    numbers.step_age_s = std::chrono::duration<double>{at.now - all.newest_step}.count();
  }
  return numbers;
}

}  // namespace torchup
