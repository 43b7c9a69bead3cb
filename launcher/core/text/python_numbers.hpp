#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace torchup {

/// What Python's int() takes: blanks around, a sign, `_` between digits. Nothing for anything else, or beyond 64 bits.
[[nodiscard]] std::optional<std::int64_t> python_int(std::string_view text);
/// What Python's float() takes, without `nan`. Nothing for anything else.
[[nodiscard]] std::optional<double> python_float(std::string_view text);

}  // namespace torchup
