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

/// What a health port shows; called on the loop for each request.
struct HealthPages {
  std::function<std::string()> status;     ///< a line of JSON
  std::function<std::string()> readiness;  ///< `ok`, or in one word why not
};

/// Answers probes over HTTP: `GET /healthz` gives everybody 200 and `ok` as long as the agent's loop turns, `GET
/// /readyz` the same while the node's workers run, else 503 and why not; `/` gives this machine the status. torchrun
/// knows the variable TORCHELASTIC_HEALTH_CHECK_PORT and opens nothing.
class HealthPort {
 public:
  /// On the loopback interfaces, or `everywhere`: the kubelet asks a pod from outside.
  ///
  /// Errors: the system's when the port is taken.
  [[nodiscard]] static Result<HealthPort> open(boost::asio::io_context& loop, Port port, bool everywhere,
                                               HealthPages pages);
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
