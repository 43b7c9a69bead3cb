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

void keep_room(Answer& answer, std::size_t unsent) {
  if (unsent + answer.body.size() <= answers_unsent_bytes_max) return;
  answer = {.number = answer.number,
            .status = 503,
            .type = "application/json",
            .body = R"({"error":{"code":"busy","message":"Too many answers are on their way; ask again"}})"};
}

}  // namespace torchup
