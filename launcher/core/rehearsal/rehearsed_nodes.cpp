#include "launcher/core/rehearsal/rehearsed_nodes.hpp"

#include <algorithm>
#include <utility>

namespace torchup {
namespace {

/// Of a job of which no node has seen the end.
constexpr int nobody_left_code = 1;

}  // namespace

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
  for (const Node& node : nodes_) {
    if (node.back_at && (!first || *node.back_at < *first)) first = node.back_at;
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
  const auto leaves = std::exchange(node.leaves, std::nullopt);
  if (leaves) {
    node.restart = leaves->restart;
  } else {
    node.ended = !node.dismissed;
    node.exit_code = event.exit_code;
  }
}

void RehearsedNodes::on(const cast::EndsAll&, TimePoint) { ends_all_ = true; }

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
  return ends_all_ || std::ranges::any_of(nodes_, [](const Node& node) { return node.job.has_value(); });
}

void RehearsedNodes::settle(TimePoint now) {
  const bool over = is_over();
  for (int i = 0; i < static_cast<int>(nodes_.size()); ++i) {
    Node& node = at(i);
    if (over) node.back_at.reset();
    if (!node.runs && node.back_at && now >= *node.back_at) start(i);
    // Nobody is left whom one that comes now could meet.
    if (over && !ends_all_ && node.runs && !node.placed && !std::exchange(node.dismissed, true)) {
      actions_.push_back(cast::EndNode{i});
    }
  }
  const bool some = std::ranges::any_of(nodes_, [](const Node& node) { return node.runs || node.back_at; });
  if (some) return;
  finished_ = true;
  actions_.push_back(cast::Finish{rehearsal_result(script_, faults_.all(), job())});
}

/// By those who have seen the job end: a bad end first.
RehearsedJob RehearsedNodes::job() const {
  RehearsedJob whole{nobody_left_code, 0, 0};
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
