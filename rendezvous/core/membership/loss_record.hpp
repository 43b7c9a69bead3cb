#pragma once

#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/membership/job_snapshot.hpp"

namespace torchup {

/// Losses that are remembered at once, over all hosts of a job; beyond that the oldest is forgotten.
inline constexpr std::size_t losses_kept_max = 4096;

/// A host that was lost `losses_max` times within `window` is put aside.
struct LossLimits {
  int losses_max = 3;
  Duration window = std::chrono::minutes{5};
};

/// Which hosts of a job were lost lately, and how often. A host is a name that an agent says: whatever it says, no more
/// than `losses_kept_max` are remembered, and none for longer than the window.
class LossRecord {
 public:
  explicit LossRecord(LossLimits limits) : limits_{limits} {}

  void lost(const std::string& host, TimePoint now);
  void forgive(const std::string& host) { losses_.erase(host); }
  void clear();
  /// Until when the host is put aside; nothing: it is not.
  [[nodiscard]] std::optional<TimePoint> aside_until(const std::string& host, TimePoint now);
  [[nodiscard]] bool has(const std::string& host) const { return losses_.contains(host); }
  [[nodiscard]] const LossLimits& limits() const { return limits_; }
  [[nodiscard]] std::size_t host_count() const { return losses_.size(); }
  [[nodiscard]] std::size_t held_bytes() const { return held_bytes_; }

  [[nodiscard]] std::vector<JobSnapshot::Losses> save(TimePoint now) const;
  void restore(const std::vector<JobSnapshot::Losses>& saved, TimePoint now);

 private:
  void remember(const std::string& host, TimePoint at);
  void forget_old(TimePoint now);

  LossLimits limits_;
  std::unordered_map<std::string, std::deque<TimePoint>> losses_;  ///< by host, oldest first
  std::deque<std::pair<TimePoint, std::string>> order_;            ///< of all losses, for their forgetting
  std::size_t held_bytes_ = 0;
};

}  // namespace torchup
