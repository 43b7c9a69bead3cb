#pragma once

#include <string>

namespace torchup {

/// The whole text of a file of /proc or /sys; empty when it cannot be read.
[[nodiscard]] std::string read_text(const std::string& path);

}  // namespace torchup
