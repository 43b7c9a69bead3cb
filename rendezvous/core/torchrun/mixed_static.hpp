#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/core/torchrun/mixed_parts.hpp"
#include "rendezvous/core/torchrun/torchrun_static.hpp"

namespace torchup {

/// Agents of ours in a static rendezvous: a part for each, for there is no state that they share.
class MixedStatic final : public MixedParts {
 public:
  explicit MixedStatic(RunId run_id) : run_id_{std::move(run_id)} {}

  void enter(Id id, std::string address, std::int64_t pid) override;
  void said(Id id, const AgentMessage& message, TimePoint now) override;
  [[nodiscard]] Result<std::vector<Told>> turn(TorchrunStore& store, TimePoint now, UtcTime utc) override;
  [[nodiscard]] bool over(Id id) const override;
  [[nodiscard]] Round round(Id id) const override;
  void slept(TimePoint now, Duration patience) override;
  [[nodiscard]] std::size_t held_bytes() const override;

 private:
  struct Part {
    std::unique_ptr<TorchrunStatic> plays;
    std::optional<TimePoint> turn_at = {};
  };
  RunId run_id_;
  std::map<Id, Part> parts_;
};

}  // namespace torchup
