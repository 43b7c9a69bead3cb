#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/core/torchrun/torchrun_care.hpp"
#include "tests/support/torchrun_keys.hpp"

namespace torchup::test {

/// A store of ours, with what cares for the job in it.
class OwnedKeys final : public Keys {
 public:
  Result<> set(const std::string& key, const std::string& value) override {
    const std::string full = "/" + key;
    if (const auto place = read_round_key(full)) care.place().published_by_ours(place->round, place->name, value);
    return Keys::set(key, value);
  }
  Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) override {
    auto held = Keys::compare_set(key, expected, desired);
    if (*held != desired) return held;
    written.push_back(state());
    care.wrote({}, *this);
    return held;
  }
  TorchrunCare* owner() override { return &care; }

  /// Written by an agent of torchrun's that speaks by that client.
  void put_as(ClientId client, const TorchrunState& state) {
    put(state);
    care.wrote(client, *this);
  }
  void turn(
      TimePoint now, UtcTime utc, const std::function<bool(ClientId)>& waits = [](ClientId) { return false; }) {
    care.turn(*this, waits, now, utc);
  }

  /// The job is over for all.
  void forget() {
    map.clear();
    care = TorchrunCare{{.run_id = RunId{"job"}}};
  }

  TorchrunCare care{{.run_id = RunId{"job"}}};
  std::vector<TorchrunState> written;  ///< by ourselves
};

}  // namespace torchup::test
