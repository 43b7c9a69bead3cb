#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/store/store_gate.hpp"
#include "rendezvous/net/store/store_proxy.hpp"

namespace torchup {

/// The store at which the workers of one round meet, on a thread of its own: workers that fill it, or die, do not delay
/// the agent, and it outlives them.
class WorkerStore {
 public:
  struct Options {
    std::string bind = {};  ///< as in StoreServerOptions, like the port
    Port port{0};
    std::function<bool(const std::string& address)> admits = {};   ///< likewise; called on the store's thread
    std::function<void(const std::string& address)> refused = {};  ///< likewise
    LogSink log = {};                                              ///< likewise
    std::optional<StoreGateOptions> gate = {};  ///< the other nodes come by it; the store itself is on loopback then
  };
  /// Serves a fresh, empty store.
  ///
  /// Errors: the system's, with address and port.
  [[nodiscard]] static Result<WorkerStore> open(Options options);

  WorkerStore(WorkerStore&&) noexcept;
  WorkerStore& operator=(WorkerStore&&) noexcept;
  /// Closes all connections.
  ~WorkerStore();

  [[nodiscard]] Port port() const;
  /// Of the gate; 0 where there is none.
  [[nodiscard]] Port gate_port() const;

 private:
  struct State;
  explicit WorkerStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Where the workers of a node reach a round's store that is another node's, on a thread of its own (StoreProxy).
class WorkerProxy {
 public:
  /// Errors: the system's.
  [[nodiscard]] static Result<WorkerProxy> open(StoreProxyOptions options);

  WorkerProxy(WorkerProxy&&) noexcept;
  WorkerProxy& operator=(WorkerProxy&&) noexcept;
  /// Closes all connections.
  ~WorkerProxy();

  [[nodiscard]] Port port() const;

 private:
  struct State;
  explicit WorkerProxy(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A port that is free now, for a store that worker rank 0 is going to serve itself.
///
/// Errors: the system's.
[[nodiscard]] Result<Port> free_port();

}  // namespace torchup
