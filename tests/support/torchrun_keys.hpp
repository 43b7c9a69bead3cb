#pragma once

#include <map>
#include <string>
#include <vector>

#include "rendezvous/core/torchrun/torchrun_store.hpp"

namespace torchup {

/// Keys in memory, with the server's answers. A torchrun agent owns them.
class Keys : public TorchrunStore {
 public:
  Result<std::optional<std::string>> find(const std::string& key) override {
    const auto found = map.find(key);
    return found == map.end() ? std::optional<std::string>{} : std::optional{found->second};
  }
  Result<> set(const std::string& key, const std::string& value) override {
    map[key] = value;
    return {};
  }
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override {
    const std::int64_t sum = (map.contains(key) ? std::stoll(map[key]) : 0) + delta;
    map[key] = std::to_string(sum);
    return sum;
  }
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    const auto found = map.find(key);
    if (found == map.end() && !expected.empty()) return expected;
    if (found == map.end() || found->second == expected) map[key] = desired;
    return map[key];
  }
  void erase(const std::string& key) override { map.erase(key); }
  Result<> count_in() override {
    ++counted_in;
    return {};
  }
  TorchrunCare* owner() override { return nullptr; }
  Result<std::optional<MeetingPlace>> common_place() override { return common; }
  bool empty(const MeetingPlace& place, std::int64_t) override {
    if (!empties) return false;
    emptied.push_back(place.address + ":" + std::to_string(place.port.value()));
    return true;
  }
  [[nodiscard]] TorchrunState state() { return *read_torchrun_state(*from_base64(map.at("torch.rendezvous.job"))); }
  void put(const TorchrunState& state) { map["torch.rendezvous.job"] = to_base64(write_torchrun_state(state)); }

  std::map<std::string, std::string> map;
  std::vector<std::string> emptied;
  std::optional<MeetingPlace> common;
  int counted_in = 0;
  bool empties = true;  ///< false: that takes its time
};

namespace test {
inline const UtcTime utc0 = std::chrono::sys_days{std::chrono::year{2026} / 1 / 1};
}

}  // namespace torchup
