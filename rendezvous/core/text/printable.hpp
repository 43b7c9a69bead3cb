#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace torchup {

inline constexpr std::size_t printed_bytes_max = 256;  ///< of one foreign text inside a line for people

/// `text` as it may stand in a line for people, whoever wrote it: valid UTF-8 of one line that moves no cursor and
/// turns no direction of writing. Control characters, bytes that are no UTF-8, line separators and marks of direction
/// become `\n`, `\t`, `\x1b`, `\u202e`. What has none of them comes back unchanged.
[[nodiscard]] std::string printable(std::string_view text);

/// The same of a text that a stranger chose, cut after `bytes_max` bytes at a whole character, with a mark where
/// something is missing.
[[nodiscard]] std::string printable_start(std::string_view text, std::size_t bytes_max = printed_bytes_max);

}  // namespace torchup
