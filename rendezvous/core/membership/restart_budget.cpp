#include "rendezvous/core/membership/restart_budget.hpp"

#include <algorithm>

namespace torchup {

RestartBudget::RestartBudget(const JobSnapshot& saved, TimePoint now) : count_{saved.restart_count} {
  for (const JobSnapshot::Restarts& each : saved.restarts) spent_.push_back({now - each.age, each.restarts});
}

int RestartBudget::used(const JobTerms& terms, TimePoint now) const {
  std::int64_t used = 0;
  for (const Spent& each : spent_) {
    const bool counts = terms.restart_window <= Duration{0} || each.at + terms.restart_window > now;
    if (counts) used += each.restarts;
  }
  return static_cast<int>(std::min<std::int64_t>(used, restarts_max));
}

bool RestartBudget::any_left(const JobTerms& terms, TimePoint now) const {
  return used(terms, now) < terms.max_restarts && count_ < restarts_max;
}

bool RestartBudget::spend(const JobTerms& terms, TimePoint now) {
  if (!any_left(terms, now)) return false;
  const int before = used(terms, now);
  if (terms.restart_window > Duration{0}) {
    std::erase_if(spent_, [&](const Spent& each) { return each.at + terms.restart_window <= now; });
    spent_.push_back({now, 1});
  } else {
    spent_ = {{now, before + 1}};
  }
  ++count_;
  return true;
}

void RestartBudget::give_back() {
  if (spent_.empty()) return;
  --count_;
  if (--spent_.back().restarts == 0) spent_.pop_back();
}

void RestartBudget::learn(int count, TimePoint now) {
  count = std::min(count, restarts_max);
  if (count <= count_) return;
  spent_.push_back({now, count - count_});
  count_ = count;
}

std::vector<JobSnapshot::Restarts> RestartBudget::spent(TimePoint now) const {
  std::vector<JobSnapshot::Restarts> list;
  for (const Spent& each : spent_) list.push_back({std::min<Duration>(now - each.at, duration_max), each.restarts});
  return list;
}

}  // namespace torchup
