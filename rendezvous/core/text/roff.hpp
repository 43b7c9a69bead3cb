#pragma once

#include <string>
#include <string_view>

namespace torchup {

/// Text in roff: a dash of an option is `\-`, a dot or quote at the beginning of it is no command.
[[nodiscard]] std::string roff(std::string_view text);

}  // namespace torchup
