#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// "2.5 s", cut after the tenth.
[[nodiscard]] std::string seconds(Duration duration);

/// "512 B", "4.0 MiB", "139.8 GiB", cut after the tenth: what is called less than a limit never looks like it. Empty
/// for what is below 0, which is not known.
[[nodiscard]] std::string bytes_text(std::int64_t bytes);

/// "1 node", "2 to 4 nodes".
[[nodiscard]] std::string nodes_wanted(int min, int max);

inline constexpr std::size_t names_joined_max = 8;
/// "a, b, c and 9 more": at most `shown` names.
[[nodiscard]] std::string join_names(std::span<const std::string> names, std::size_t shown = names_joined_max);

}  // namespace torchup
