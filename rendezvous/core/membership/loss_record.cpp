#include "rendezvous/core/membership/loss_record.hpp"

#include <algorithm>

namespace torchup {

void LossRecord::lost(const std::string& host, TimePoint now) {
  auto& times = losses_[host];
  times.push_back(now);
  if (static_cast<int>(times.size()) > limits_.losses_max) times.pop_front();
  order_.emplace_back(now, host);
  forget_old(now);
}

void LossRecord::clear() {
  losses_.clear();
  order_.clear();
}

std::optional<TimePoint> LossRecord::aside_until(const std::string& host, TimePoint now) {
  forget_old(now);
  const auto found = losses_.find(host);
  if (found == losses_.end() || static_cast<int>(found->second.size()) < limits_.losses_max) return {};
  return found->second.front() + limits_.window;
}

void LossRecord::forget_old(TimePoint now) {
  while (!order_.empty() && (order_.size() > losses_kept_max || order_.front().first + limits_.window <= now)) {
    const auto& [at, host] = order_.front();
    if (const auto found = losses_.find(host); found != losses_.end()) {
      auto& times = found->second;
      while (!times.empty() && times.front() <= at) times.pop_front();
      if (times.empty()) losses_.erase(found);
    }
    order_.pop_front();
  }
}

std::vector<JobSnapshot::Losses> LossRecord::save(TimePoint now) const {
  std::vector<JobSnapshot::Losses> list;
  for (const auto& [host, times] : losses_) {
    JobSnapshot::Losses one{host, {}};
    for (const TimePoint at : times) {
      if (now - at < limits_.window) one.ages.push_back(now - at);
    }
    if (!one.ages.empty()) list.push_back(std::move(one));
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.host < b.host; });
  return list;
}

void LossRecord::restore(const std::vector<JobSnapshot::Losses>& saved, TimePoint now) {
  for (const JobSnapshot::Losses& each : saved) {
    for (const Duration age : each.ages) {
      losses_[each.host].push_back(now - age);
      order_.emplace_back(now - age, each.host);
    }
  }
  std::sort(order_.begin(), order_.end());
}

}  // namespace torchup
