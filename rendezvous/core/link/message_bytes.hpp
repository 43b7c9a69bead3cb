#pragma once

#include <cstddef>
#include <vector>

#include "rendezvous/core/link/messages.hpp"

/// What messages take up where they are kept, with what keeps them there.
namespace torchup {

[[nodiscard]] std::size_t held_bytes(const Join& join);
[[nodiscard]] std::size_t held_bytes(const std::vector<WorkerFailure>& failures);
[[nodiscard]] std::size_t held_bytes(const Verdict& verdict);

}  // namespace torchup
