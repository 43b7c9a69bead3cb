#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace torchup {

/// The completion script for `shell` (bash, zsh, fish, tcsh): options with their choices, then programs and files.
/// Nothing for another shell.
[[nodiscard]] std::optional<std::string> completion_script(std::string_view shell);

/// "a b c" of "a|b|c".
[[nodiscard]] std::string spaced(std::string_view choices);
/// Inside single quotes of a shell.
[[nodiscard]] std::string shell_quoted(std::string_view text);

}  // namespace torchup
