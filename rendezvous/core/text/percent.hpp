#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace torchup {

/// As one part of a path or query: letters, digits and "-._~" as they are, every other byte as "%2F".
[[nodiscard]] std::string percent_encoded(std::string_view text);
/// Back again. Empty where a "%" has no two hexadecimal digits behind it; a "+" is a plus.
[[nodiscard]] std::optional<std::string> percent_decoded(std::string_view text);

}  // namespace torchup
