#pragma once

#include <string>

namespace torchup {

class Coordinator;
struct StoreServerStatus;

/// The page /status: the store's counters and every job, as JSON.
[[nodiscard]] std::string status_page(const StoreServerStatus& status, const Coordinator& coordinator);
/// The page /metrics, as Prometheus reads it.
[[nodiscard]] std::string metrics_page(const StoreServerStatus& status);

}  // namespace torchup
