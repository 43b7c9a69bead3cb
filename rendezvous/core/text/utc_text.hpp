#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torchup {

/// Microseconds since 1970 as `2026-11-21T04:03:58.000001Z`.
[[nodiscard]] std::string utc_text(std::int64_t utc_us);
/// Back again, with or without a fraction; nothing for what is no such time.
[[nodiscard]] std::optional<std::int64_t> read_utc(std::string_view text);

}  // namespace torchup
