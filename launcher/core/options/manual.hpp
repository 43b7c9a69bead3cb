#pragma once

#include <string>
#include <string_view>

#include "launcher/core/options/option_table.hpp"

namespace torchup {

/// The manual page torchup(1) in roff, its options from the option table.
[[nodiscard]] std::string manual_page(std::string_view version);

/// An option's paragraph.
[[nodiscard]] std::string manual_entry(const OptionSpec& option);

}  // namespace torchup
