#pragma once

#include <string>

#include "rendezvous/core/ops/metrics_text.hpp"

namespace torchup {

/// Of this process, as the kernel has them now.
[[nodiscard]] ProcessNumbers process_numbers(std::string version);

}  // namespace torchup
