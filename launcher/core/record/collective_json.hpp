#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "rendezvous/core/diagnosis/hang_verdict.hpp"

namespace torchup {

/// `{group, number, operation, sizes, dtype, missing, waiting, operations}`, as events have it too; null for none. Sets
/// of ranks are texts: "0-7,12-60:4".
[[nodiscard]] nlohmann::ordered_json collective_json(const std::optional<AwaitedCollective>& call);

}  // namespace torchup
