#pragma once

#include <string>
#include <string_view>

#include "launcher/core/options/option_table.hpp"

namespace torchup {

/// The manual page torchup(1) in roff, its options from the option table.
[[nodiscard]] std::string manual_page(std::string_view version);

/// Text in roff: a dash of an option is `\-`, a dot or quote at the beginning of a line is no command.
[[nodiscard]] std::string roff(std::string_view text);
/// An option's paragraph.
[[nodiscard]] std::string manual_entry(const OptionSpec& option);

}  // namespace torchup
