#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// How long turns of a loop took, as Prometheus counts: in steps from 10 µs to 1 s.
class TurnHistogram {
 public:
  struct Step {
    std::int64_t ns;        ///< turns that took so long, or shorter
    std::string_view text;  ///< in seconds
  };
  static constexpr std::array steps{
      Step{10'000, "0.00001"},  Step{25'000, "0.000025"},  Step{50'000, "0.00005"},   Step{100'000, "0.0001"},
      Step{250'000, "0.00025"}, Step{500'000, "0.0005"},   Step{1'000'000, "0.001"},  Step{2'500'000, "0.0025"},
      Step{5'000'000, "0.005"}, Step{10'000'000, "0.01"},  Step{25'000'000, "0.025"}, Step{50'000'000, "0.05"},
      Step{100'000'000, "0.1"}, Step{250'000'000, "0.25"}, Step{500'000'000, "0.5"},  Step{1'000'000'000, "1"},
  };

  void add(Duration took) {
    const std::int64_t ns = std::chrono::nanoseconds{took}.count();
    std::size_t step = 0;
    while (step < steps.size() && ns > steps[step].ns) ++step;
    ++counts_[step];
    sum_ns_ += ns;
  }
  /// Of the turns of that step alone; behind the last, those that took longer.
  [[nodiscard]] std::uint64_t count(std::size_t step) const { return counts_[step]; }
  [[nodiscard]] double sum_s() const { return static_cast<double>(sum_ns_) / 1e9; }

 private:
  std::array<std::uint64_t, steps.size() + 1> counts_{};
  std::int64_t sum_ns_ = 0;
};

}  // namespace torchup
