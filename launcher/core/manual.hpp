#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace torchup {

/// The manual page torchup(1) in roff, its options from the option table.
[[nodiscard]] std::string manual_page(std::string_view version);

/// The completion script for `shell` (bash, zsh, fish, tcsh): options with their choices, then programs and files.
/// Nothing for another shell.
[[nodiscard]] std::optional<std::string> completion_script(std::string_view shell);

}  // namespace torchup
