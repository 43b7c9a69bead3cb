#pragma once

#include <map>
#include <string>
#include <vector>

#include "rendezvous/core/torchrun_peer.hpp"

namespace torchup {

/// Keys in memory, with the server's answers.
class Keys final : public TorchrunStore {
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
  Result<WorkerStore> worker_store() override { return WorkerStore{"10.0.0.200", Port{1000}}; }
  void empty_worker_store(const WorkerStore& workers) override {
    emptied.push_back(workers.address + ":" + std::to_string(workers.port.value()));
  }
  [[nodiscard]] TorchrunState state() { return *read_torchrun_state(*from_base64(map.at("torch.rendezvous.job"))); }
  void put(const TorchrunState& state) { map["torch.rendezvous.job"] = to_base64(write_torchrun_state(state)); }

  std::map<std::string, std::string> map;
  std::vector<std::string> emptied;
};

}  // namespace torchup
