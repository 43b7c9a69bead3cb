#pragma once

#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"

namespace torchup {

[[nodiscard]] std::string to_base64(std::string_view bytes);

/// As Python's base64.b64decode: characters outside the alphabet are skipped, and what stands behind the padding.
/// Linear in the length of `text`.
///
/// Errors: errc::bad_frame for padding that is missing or where it cannot be.
[[nodiscard]] Result<std::string> from_base64(std::string_view text);

}  // namespace torchup
