#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/torchrun/torchrun_store.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

namespace torchup {

/// What agents of ours do among torchrun's agents of one job that meet in a store of ours: in an elastic rendezvous
/// (MixedRound) or a static one (MixedStatic). They speak to it as to a coordinator, and are answered so.
class MixedParts {
 public:
  /// An agent. Each is used once.
  using Id = std::int64_t;
  struct Told {
    Id to = 0;
    CoordinatorMessage message;
  };

  MixedParts() = default;
  MixedParts(const MixedParts&) = delete;
  MixedParts& operator=(const MixedParts&) = delete;
  virtual ~MixedParts() = default;

  /// `address`: of its node, as others reach it. `pid`: its own.
  virtual void enter(Id id, std::string address, std::int64_t pid) = 0;
  /// What it says, to be followed by a turn.
  virtual void said(Id id, const AgentMessage& message, TimePoint now) = 0;
  /// Looks at the store and does what is due; what agents are told. Nobody is told anything after End. To be called
  /// whenever something was said, and some times a second.
  [[nodiscard]] virtual Result<std::vector<Told>> turn(TorchrunStore& store, TimePoint now, UtcTime utc) = 0;

  /// Whether it was told End, or never entered. After the turn in which it was told nothing is kept of it.
  [[nodiscard]] virtual bool over(Id id) const = 0;
  /// The round that it was placed in last, or is about to be.
  [[nodiscard]] virtual Round round(Id id) const = 0;
  /// Its name in the state that torchrun's agents share; nothing: it is not there yet, or there is none.
  [[nodiscard]] virtual std::optional<TorchrunNode> name(Id) const { return std::nullopt; }
  /// Its host was lost too often lately: it is used only where too few others are there.
  virtual void set_aside(Id, bool) {}
  /// The coordinator itself was asleep until `now`: what agents are waited for has so much time left at least.
  virtual void slept(TimePoint now, Duration patience) = 0;
  /// Memory for what agents told.
  [[nodiscard]] virtual std::size_t held_bytes() const = 0;
};

}  // namespace torchup
