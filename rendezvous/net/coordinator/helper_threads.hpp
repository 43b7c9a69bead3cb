#pragma once

#include <cstddef>
#include <future>
#include <memory>
#include <utility>

#include "rendezvous/net/io/background.hpp"

namespace torchup {

/// Threads that ask, and empty, workers' stores which others name.
inline constexpr std::size_t helper_threads_max = 256;

/// Threads for work that blocks: helper_threads_max of them at once, for it is strangers who cause it.
class HelperThreads {
 public:
  /// As in_background. The future is not valid() where there are so many, or the system gives none: to be asked for
  /// again.
  template <class Work>
  [[nodiscard]] auto run(Work work) const -> std::future<decltype(work())> {
    if (count() >= helper_threads_max) return {};
    // The future keeps the work, but not what it has moved away.
    return in_background([work = std::move(work), counted = counted_]() mutable {
      const auto until_the_end = std::move(counted);
      return work();
    });
  }
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(counted_.use_count() - 1); }

  template <class T>
  [[nodiscard]] static bool over(const std::future<T>& future) {
    return future.wait_for(std::chrono::seconds{0}) == std::future_status::ready;
  }

 private:
  std::shared_ptr<const bool> counted_ = std::make_shared<const bool>(true);  ///< each of them holds it
};

}  // namespace torchup
