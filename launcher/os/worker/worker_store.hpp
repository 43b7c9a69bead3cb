#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/text/log_line.hpp"

namespace torchup {

/// The store at which the workers of one round meet, on a thread of its own: workers that fill it, or die, do not delay
/// the agent, and it outlives them.
class WorkerStore {
 public:
  struct Options {
    std::string bind = {};  ///< as in StoreServerOptions, like the port
    Port port{0};
    std::function<bool(const std::string& address)> admits = {};  ///< likewise; called on the store's thread
    LogSink log = {};                                             ///< likewise
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

 private:
  struct State;
  explicit WorkerStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A port that is free now, for a store that worker rank 0 is going to serve itself.
///
/// Errors: the system's.
[[nodiscard]] Result<Port> free_port();

}  // namespace torchup
