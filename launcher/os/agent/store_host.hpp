#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/os/worker/worker_store.hpp"
#include "rendezvous/core/port/refusal_pace.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// Where the workers of a round meet: on group rank 0's node, by the plan. Lives on the loop; the store that it opens
/// has a thread of its own.
class StoreHost {
 public:
  /// What clients of the store make it say, as often as they like.
  using Said = std::function<void(LogLine)>;
  /// notice, store_refused.
  using Recorder = std::function<void(EventBody)>;
  StoreHost(asio::io_context& loop, const LaunchConfig& config, Said said, Recorder record);

  /// What the members of the round are told of its store.
  struct Opened {
    Port port{0};
    StoreKey key{};  ///< with --store-proxy
  };
  /// A fresh store in place of the one before, or a port that is free for the one that worker rank 0 is to serve.
  /// `sources`: the members' addresses, as in HostStore.
  ///
  /// Errors: the system's, with address and port.
  [[nodiscard]] Result<Opened> open(const std::vector<std::string>& sources);

  /// With --store-proxy: the port of 127.0.0.1 at which this node's workers reach the round's store, which is this
  /// node's or another's. Else 0: they reach it at its own address. Errors: the system's.
  [[nodiscard]] Result<Port> reach(const Placement& placement);

 private:
  [[nodiscard]] bool by_proxy() const { return config_.terms.store_proxy && !config_.one_node(); }
  [[nodiscard]] Result<Opened> open_behind_gate();
  [[nodiscard]] LogSink log();
  void refused(const std::string& address);

  asio::io_context& loop_;
  const LaunchConfig& config_;
  Said said_;
  Recorder record_;
  RefusalPace refusals_;
  std::optional<WorkerStore> store_;
  std::optional<WorkerProxy> proxy_;
  Round proxied_{-1};  ///< the round to whose store it leads
};

}  // namespace torchup
