#pragma once

#include <string>
#include <string_view>

namespace torchup {

/// A zip archive that holds one file, not compressed: what Python imports from where there is no folder.
/// `name` and `content` are shorter than 64 KiB and 4 GiB, the format's limits.
[[nodiscard]] std::string stored_zip(std::string_view name, std::string_view content);

}  // namespace torchup
