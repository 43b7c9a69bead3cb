#pragma once

#include <string>
#include <vector>

namespace torchup {

/// The environment of this process, "NAME=value" each.
[[nodiscard]] std::vector<std::string> own_environment();

}  // namespace torchup
