#include <algorithm>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {

std::size_t root_cause(const std::vector<WorkerFailure>& failures) {
  const bool nobodys = std::ranges::all_of(failures, &WorkerFailure::consequence);
  const auto may_be = [&](const WorkerFailure& failure) { return nobodys || !failure.consequence; };
  const auto second = [](const WorkerFailure& failure) { return failure.time_us / 1'000'000; };
  const auto earlier = [&](const WorkerFailure& left, const WorkerFailure& right) {
    if (left.raised_at_ns != 0 && right.raised_at_ns != 0) return left.raised_at_ns < right.raised_at_ns;
    return second(left) < second(right);
  };
  const auto first = std::ranges::find_if(failures, may_be);
  auto cause = first;
  for (auto other = first; other != failures.end(); ++other)
    if (may_be(*other) && other->host == first->host && earlier(*other, *cause)) cause = other;
  return static_cast<std::size_t>(cause - failures.begin());
}

}  // namespace torchup
