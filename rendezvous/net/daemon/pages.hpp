#pragma once

#include <functional>
#include <string>

#include "rendezvous/net/daemon/http.hpp"

namespace torchup {

class Coordinator;
struct StoreServerStatus;

/// The pages of a coordinator's port: /healthz and /readyz for probes, /metrics for Prometheus, and /status, the
/// store's counters and every job as JSON. The coordinator must outlive them.
[[nodiscard]] HttpOptions::Pages pages(std::function<StoreServerStatus()> status, const Coordinator& coordinator);

}  // namespace torchup
