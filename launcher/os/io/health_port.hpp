#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// Answers probes over HTTP: `GET /healthz` gives everybody 200 and `ok` as long as the agent's loop turns, which is
/// what a probe wants to know; `/` gives this machine a line of JSON. torchrun knows the variable
/// TORCHELASTIC_HEALTH_CHECK_PORT and opens nothing.
class HealthPort {
 public:
  /// On the loopback interfaces, or `everywhere`: the kubelet asks a pod from outside. `body` is called on the loop for
  /// each request of `/`.
  ///
  /// Errors: the system's when the port is taken.
  [[nodiscard]] static Result<HealthPort> open(boost::asio::io_context& loop, Port port, bool everywhere,
                                               std::function<std::string()> body);
  HealthPort(HealthPort&&) noexcept;
  HealthPort& operator=(HealthPort&&) noexcept;
  ~HealthPort();

  [[nodiscard]] Port port() const;

 private:
  class Impl;
  explicit HealthPort(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup
