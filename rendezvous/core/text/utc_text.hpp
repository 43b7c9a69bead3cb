#pragma once

#include <cstdint>
#include <string>

namespace torchup {

/// Microseconds since 1970 as `2026-11-21T04:03:58.000001Z`.
[[nodiscard]] std::string utc_text(std::int64_t utc_us);

}  // namespace torchup
