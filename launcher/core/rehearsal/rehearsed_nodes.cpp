#include "launcher/core/rehearsal/rehearsed_nodes.hpp"

#include <algorithm>
#include <utility>

#include "rendezvous/base/exit_codes.hpp"

namespace torchup {

RehearsedNodes::RehearsedNodes(RehearsalScript script, int nodes)
    : script_{std::move(script)}, nodes_(static_cast<std::size_t>(nodes)) {}

std::vector<cast::Action> RehearsedNodes::step(const cast::Event& event, TimePoint now) {
  if (finished_) return {};
  std::visit([&](const auto& each) { on(each, now); }, event);
  settle(now);
  return std::exchange(actions_, {});
}

std::optional<TimePoint> RehearsedNodes::deadline() const {
  std::optional<TimePoint> first;
  const auto earlier = [&first](const std::optional<TimePoint>& when) {
    if (when && (!first || *when < *first)) first = when;
  };
  const bool over = is_over();
  for (const Node& node : nodes_) {
    if (!node.runs) earlier(node.back_at);  // who is to be ended is first to be gone
    if (over && node.runs && node.resumed_at && *node.resumed_at < node.stopped_until) {
      earlier(std::min(*node.resumed_at + resume_interval, *node.stopped_until));
    }
  }
  return first;
}

void RehearsedNodes::on(const cast::Begin&, TimePoint) {
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) start(i);
}

void RehearsedNodes::on(const cast::Told& event, TimePoint now) {
  using What = RehearsalReport::What;
  Node& node = at(event.node);
  const RehearsalReport& report = event.report;
  switch (report.what) {
    case What::placed:
      node.placed = true;
      node.stopped_until.reset();
      return;
    case What::waiting:
      node.placed = false;
      node.stopped_until.reset();
      return;
    case What::stopped:
      node.stopped_until = now + report.lasts;
      return;
    case What::away:
      node.leaves = report;
      if (report.back) node.back_at = now + *report.back;
      faults_.add(report.faults, false);
      return;
    case What::ended:
      if (node.dismissed) return;
      node.leaves.reset();  // the fault was not brought about
      node.job = report.job;
      faults_.add(report.faults, true);
      return;
  }
}

void RehearsedNodes::on(const cast::Gone& event, TimePoint) {
  Node& node = at(event.node);
  node.runs = false;
  node.stopped_until.reset();
  const auto leaves = std::exchange(node.leaves, std::nullopt);
  if (leaves) {
    node.restart = leaves->restart;
  } else {
    node.ended = !node.dismissed;
    node.exit_code = event.exit_code;
  }
}

void RehearsedNodes::on(const cast::EndsAll& event, TimePoint) {
  if (!ends_all_) ends_all_ = event.exit_code;
}

void RehearsedNodes::on(const cast::Wake&, TimePoint) {}

void RehearsedNodes::start(int index) {
  Node& node = at(index);
  node.runs = true;
  node.placed = false;
  node.back_at.reset();
  actions_.push_back(cast::Start{index, node.restart});
}

/// Whether the job has ended for those who were in it. One whose process is gone without a word is only lost.
bool RehearsedNodes::is_over() const {
  return ends_all_.has_value() || std::ranges::any_of(nodes_, [](const Node& node) { return node.job.has_value(); });
}

void RehearsedNodes::settle(TimePoint now) {
  const bool over = is_over();
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
    Node& node = at(i);
    if (!is_stopped(node, now)) node.stopped_until.reset();
    if (over) node.back_at.reset();
    if (!node.runs && node.back_at && now >= *node.back_at) start(i);
    if (over && !ends_all_) dismiss(i, now);
    if (over && is_stopped(node, now)) resume(i, now);
  }
  const bool some = std::ranges::any_of(nodes_, [](const Node& node) { return node.runs || node.back_at; });
  if (some) return;
  finished_ = true;
  actions_.push_back(cast::Finish{rehearsal_result(script_, faults_.all(), job())});
}

/// The job is over, and this one will not see it: nobody is left whom one that comes now could meet, and nobody waits
/// for one that is stopped.
void RehearsedNodes::dismiss(int index, TimePoint now) {
  Node& node = at(index);
  if (!node.runs || node.job || (node.placed && !is_stopped(node, now))) return;
  if (!std::exchange(node.dismissed, true)) actions_.emplace_back(cast::EndNode{index});
}

void RehearsedNodes::resume(int index, TimePoint now) {
  Node& node = at(index);
  if (node.resumed_at && now < *node.resumed_at + resume_interval) return;
  node.resumed_at = now;
  actions_.emplace_back(cast::Resume{index});
}

/// By those who have seen the job end: a bad end first.
RehearsedJob RehearsedNodes::job() const {
  RehearsedJob whole{ends_all_.value_or(exit_code::failed), 0, 0};
  bool known = false;
  for (const Node& node : nodes_) {
    if (!node.ended && !node.job) continue;
    const int told = node.job ? node.job->exit_code : 0;
    if (!known || whole.exit_code == 0) whole.exit_code = told != 0 ? told : node.exit_code;
    known = true;
    if (!node.job) continue;
    whole.restarts = std::max(whole.restarts, node.job->restarts);
    whole.ranks = std::max(whole.ranks, node.job->ranks);
  }
  return whole;
}

}  // namespace torchup
