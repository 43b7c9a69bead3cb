#pragma once

#include <cstddef>
#include <string_view>

namespace torchup {

/// Whether two secrets, or proofs of them, are the same, in a time that does not depend on where they differ. Only
/// their lengths may show.
[[nodiscard]] inline bool same_secret(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  volatile unsigned char differs = 0;  // volatile: no compiler may stop at the first byte that does
  for (std::size_t at = 0; at < left.size(); ++at) {
    differs = static_cast<unsigned char>(differs | static_cast<unsigned char>(left[at] ^ right[at]));
  }
  return differs == 0;
}

}  // namespace torchup
