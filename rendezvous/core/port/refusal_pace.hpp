#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// Which refusals are told: of each address one a minute, for whoever is refused may come again as fast as it can. Of
/// more addresses than `addresses_max` in a minute the others are not told at all. Pure.
class RefusalPace {
 public:
  static constexpr Duration window = std::chrono::minutes{1};
  static constexpr std::size_t addresses_max = 1024;

  [[nodiscard]] bool tells(const std::string& address, TimePoint now) {
    if (const auto told = told_.find(address); told != told_.end() && now - told->second < window) return false;
    if (told_.size() >= addresses_max) {
      std::erase_if(told_, [now](const auto& each) { return now - each.second >= window; });
    }
    if (told_.size() >= addresses_max && !told_.contains(address)) return false;
    told_[address] = now;
    return true;
  }

 private:
  std::map<std::string, TimePoint> told_;
};

}  // namespace torchup
