#pragma once

#include <vector>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/membership/job_snapshot.hpp"

namespace torchup {

/// The restarts of one job after worker failures: how many there were, and whether another is allowed. The one place
/// that counts them.
class RestartBudget {
 public:
  RestartBudget() = default;
  RestartBudget(const JobSnapshot& saved, TimePoint now);

  /// Since the job began; its workers see it as TORCHELASTIC_RESTART_COUNT.
  [[nodiscard]] int count() const { return count_; }
  /// Those of them that use up JobTerms::max_restarts at `now`: with a restart window, the ones within it.
  [[nodiscard]] int used(const JobTerms& terms, TimePoint now) const;

  [[nodiscard]] bool any_left(const JobTerms& terms, TimePoint now) const;
  /// One more restart; false when none is left.
  [[nodiscard]] bool spend(const JobTerms& terms, TimePoint now);
  /// The last one was none: another cause was found for the failure.
  void give_back();
  /// A former life of the coordinator had counted `count` restarts. When they were is not known: they count as of now.
  void learn(int count, TimePoint now);

  [[nodiscard]] std::vector<JobSnapshot::Restarts> spent(TimePoint now) const;

 private:
  struct Spent {
    TimePoint at{};
    int restarts = 0;
  };
  int count_ = 0;
  std::vector<Spent> spent_;  ///< oldest first; one for all where no window asks when they were
};

}  // namespace torchup
