#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace torchup {

/// The completion script of torchupctl for `shell` (bash, zsh, fish, tcsh): verbs, then their options with choices, run
/// ids of this machine and files. Nothing for another shell.
[[nodiscard]] std::optional<std::string> ctl_completion(std::string_view shell);

}  // namespace torchup
