#pragma once

#include <string>
#include <string_view>

namespace torchup {

/// torchupctl(1) in roff, its verbs and options from their table.
[[nodiscard]] std::string ctl_manual_page(std::string_view version);

/// How torchupctl ends, for its help.
[[nodiscard]] std::string ctl_exit_text();

}  // namespace torchup
