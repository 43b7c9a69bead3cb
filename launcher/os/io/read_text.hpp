#pragma once

#include <cstddef>
#include <string>

namespace torchup {

/// The text of a file of /proc or /sys, at most `bytes_max` of it; empty when it cannot be read. What it is about may
/// be gone between two reads: then it is what came before.
[[nodiscard]] std::string read_text(const std::string& path, std::size_t bytes_max = std::size_t{16} << 20);

}  // namespace torchup
