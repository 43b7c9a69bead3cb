#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/os/worker/worker_store.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// Where the workers of a round meet: on group rank 0's node, by the plan. Lives on the loop; the store that it opens
/// has a thread of its own.
class StoreHost {
 public:
  /// What clients of the store make it say, as often as they like.
  using Said = std::function<void(LogLine)>;
  /// notice.
  using Recorder = std::function<void(EventBody)>;
  StoreHost(asio::io_context& loop, const LaunchConfig& config, Said said, Recorder record);

  /// A fresh store in place of the one before, or a port that is free for the one that worker rank 0 is to serve.
  /// `sources`: the members' addresses, as in HostStore.
  ///
  /// Errors: the system's, with address and port.
  [[nodiscard]] Result<Port> open(const std::vector<std::string>& sources);

 private:
  [[nodiscard]] LogSink log();

  asio::io_context& loop_;
  const LaunchConfig& config_;
  Said said_;
  Recorder record_;
  std::optional<WorkerStore> store_;
};

}  // namespace torchup
