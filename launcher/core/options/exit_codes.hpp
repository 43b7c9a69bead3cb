#pragma once

#include <span>
#include <string_view>

namespace torchup {

/// One way in which the launcher ends, for help, manual page and README.
struct ExitCode {
  std::string_view code;     ///< "66", "128+n"
  std::string_view meaning;  ///< one sentence without a capital and a full stop
};

/// All of them, in the order of their numbers. README's table is held against this one by a test.
[[nodiscard]] std::span<const ExitCode> exit_codes();

}  // namespace torchup
