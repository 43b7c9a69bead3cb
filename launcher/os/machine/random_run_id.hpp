#pragma once

#include <string>

namespace torchup {

/// A UUID, for a job that nobody has named.
[[nodiscard]] std::string random_run_id();

}  // namespace torchup
