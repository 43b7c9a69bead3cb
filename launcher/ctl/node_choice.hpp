#pragma once

#include <string>
#include <string_view>

#include "launcher/core/text/json.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// The id of the node of a snapshot that `word` means: an id, else a group rank, else a host. Pure.
///
/// Errors: errc::bad_value where there is none, or there are several of that host, which are named.
[[nodiscard]] Result<std::string> choose_node(const json& snapshot, std::string_view word);

}  // namespace torchup
