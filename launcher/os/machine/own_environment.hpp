#pragma once

#include <string>
#include <vector>

namespace torchup {

/// The environment of this process, "NAME=value" each.
[[nodiscard]] std::vector<std::string> own_environment();

/// The directory that we work in; empty where it is gone.
[[nodiscard]] std::string own_directory();

/// The path of our own file.
[[nodiscard]] std::string own_program();

}  // namespace torchup
