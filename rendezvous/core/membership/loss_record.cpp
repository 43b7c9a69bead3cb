#include "rendezvous/core/membership/loss_record.hpp"

#include <algorithm>

#include "rendezvous/core/link/message_bytes.hpp"

namespace torchup {
namespace {

/// One loss: its places in the record and in the order, each with the host's name.
std::size_t loss_bytes(const std::string& host) {
  constexpr std::size_t entries_bytes = 256;
  return entries_bytes + 2 * text_bytes(host);
}

}  // namespace

void LossRecord::remember(const std::string& host, TimePoint at) {
  losses_[host].push_back(at);
  order_.emplace_back(at, host);
  held_bytes_ += loss_bytes(host);
}

void LossRecord::lost(const std::string& host, TimePoint now) {
  remember(host, now);
  auto& times = losses_[host];
  if (static_cast<int>(times.size()) > limits_.losses_max) times.pop_front();
  forget_old(now);
}

void LossRecord::clear() {
  losses_.clear();
  order_.clear();
  held_bytes_ = 0;
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
    held_bytes_ -= loss_bytes(host);
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
    for (const Duration age : each.ages) remember(each.host, now - age);
  }
  std::sort(order_.begin(), order_.end());
}

}  // namespace torchup
