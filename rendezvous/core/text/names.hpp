#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Names that travel between machines: run ids, node ids, hosts, roles, addresses, names and values of facts.
///
/// People read them in logs and on pages, so a name is short, is UTF-8 and has no control character.
namespace torchup {

inline constexpr std::size_t name_bytes_max = 256;

/// Empty when `text` is a name, else why it is none, as in "it is longer than 256 bytes".
[[nodiscard]] std::string_view why_no_name(std::string_view text);

/// `text` as a name: a question mark for each control character and each byte that is no part of UTF-8, then cut.
[[nodiscard]] std::string as_name(std::string_view text);

/// The start of `text` with `bytes_max` bytes at most that does not end within a character.
[[nodiscard]] std::string_view cut_text(std::string_view text, std::size_t bytes_max);

}  // namespace torchup
