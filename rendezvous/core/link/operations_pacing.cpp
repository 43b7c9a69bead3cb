#include "rendezvous/core/link/operations_pacing.hpp"

#include <algorithm>
#include <utility>

namespace torchup {

std::optional<NodeReport> ReportPacing::take(int nodes, TimePoint now) {
  if (!report_) return {};
  const bool changed = told_letters_ != report_->ranks;
  const Duration wait = nodes > many_nodes && !changed ? pace_of_many : pace;
  if (told_at_ && now < *told_at_ + wait) return {};
  told_at_ = now;
  told_letters_ = report_->ranks;
  return std::exchange(report_, std::nullopt);
}

std::optional<NodeEvent> EventAllowance::admit(std::string line, TimePoint now) {
  const TimePoint full = now - each * burst;
  const TimePoint used = std::max(empty_at_.value_or(full), full) + each;
  if (line.size() > node_event_bytes_max || used > now) {
    lose();
    return {};
  }
  empty_at_ = used;
  return NodeEvent{std::move(line), lost_};
}

}  // namespace torchup
