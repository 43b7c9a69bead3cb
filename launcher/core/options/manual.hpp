#pragma once

#include <string>
#include <string_view>

namespace torchup {

/// The manual page torchup(1) in roff, its options from the option table.
[[nodiscard]] std::string manual_page(std::string_view version);

}  // namespace torchup
