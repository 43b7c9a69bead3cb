#pragma once

#include <string>

namespace torchup {

/// Throws the public torchup::Error. For files that use the environment contract, whose own Error is another type.
[[noreturn]] void throw_error(const std::string& message);

}  // namespace torchup
