#pragma once

#include <optional>
#include <string>

#include "launcher/core/plan/worker_command.hpp"

namespace torchup {

/// Looks a program up; see Where. A folder counts only for Python, when it has a __main__.py.
[[nodiscard]] std::optional<ProgramFile> find_program(const std::string& name, Where where);

/// Where a Python may be.
[[nodiscard]] Pythons find_pythons();

}  // namespace torchup
