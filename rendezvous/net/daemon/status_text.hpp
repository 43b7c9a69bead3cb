#pragma once

#include <string>

namespace torchup {

class Coordinator;
struct StoreServerStatus;

/// `GET /status`: the store's counters and every job as JSON.
[[nodiscard]] std::string status_text(const StoreServerStatus& status, const Coordinator& coordinator);

}  // namespace torchup
