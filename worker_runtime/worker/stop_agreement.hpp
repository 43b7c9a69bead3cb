#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// All ranks stop after the same step, once any of them is asked to.
///
/// Ranks are not in step: one may be waiting in a collective for another that already stands at the end of the step
/// before. So nobody may simply stop where it learns of the wish, and the training thread, which may be stuck in a
/// collective, cannot answer for itself. A thread of our own does: it makes its rank hold at the end of the step that
/// is under way, and publishes the number of steps that are done. When all ranks have, the stop is at the largest such
/// number plus one: every rank reaches it, for it is at most one step further than where the rank holds, and none is
/// beyond it. The ranks hold for no longer than that exchange takes; while nobody asks, a step costs one atomic
/// increment, and nothing is said to the store.
///
/// Where a rank does not answer in time, all go on, and are asked again as soon as it has.
class StopAgreement {
 public:
  struct Ranks {
    int rank = 0;
    int world_size = 1;
    int run = 0;  ///< of those that one round holds, which begin to count steps anew
    /// Ranks that do not answer in that time do not know this protocol, or are about to be killed.
    std::chrono::milliseconds answer_limit = std::chrono::seconds{60};
  };
  /// `asked` says whether this rank itself is asked to stop; it is called ten times a second on the thread.
  StopAgreement(Ranks ranks, std::function<bool()> asked);
  ~StopAgreement();
  StopAgreement(const StopAgreement&) = delete;
  StopAgreement& operator=(const StopAgreement&) = delete;

  /// The training thread calls it at the end of each step, on all ranks equally often. True: this was the last one.
  bool end_step();

 private:
  void watch();
  /// Until this rank or another is asked to stop; false: the training has ended.
  bool wait_for_wish(int attempt);
  /// The step after which all stop; `never` when somebody does not answer.
  std::int64_t agree(int attempt);
  /// Until `key` is in the store; false: given up.
  bool wait_for(const std::string& key, const std::function<bool()>& give_up);
  /// Sleeps for a moment, or until the training ends.
  void pause() const;
  void decide(std::int64_t stop_at);
  std::string key(int attempt, const char* what) const;

  const Ranks ranks_;
  const std::function<bool()> asked_;
  std::atomic<std::int64_t> done_{0};  // steps
  std::atomic<bool> holding_{false};
  std::atomic<bool> ending_{false};
  UniqueFd wake_;  // readable when ending
  c10::intrusive_ptr<c10d::Store> store_;
  std::string round_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t stop_at_ = 0;  // guarded by mutex_; 0: not decided
  std::thread thread_;
};

}  // namespace torchup
