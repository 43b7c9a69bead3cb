#pragma once

#include <string_view>

namespace torchup {

inline constexpr std::string_view cuda_devices = "CUDA_VISIBLE_DEVICES";

/// How many devices this value of CUDA_VISIBLE_DEVICES names, without asking the driver: those before the first one
/// that cannot be any (`-1`, `NoDevFiles`, an empty one). At most local_workers_max are counted.
[[nodiscard]] int visible_count(std::string_view value);

}  // namespace torchup
