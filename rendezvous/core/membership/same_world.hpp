#pragma once

#include <span>
#include <string>
#include <vector>

#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// The facts of one host.
struct HostFacts {
  const std::string* host = nullptr;
  const std::vector<Fact>* facts = nullptr;
};

/// Facts in which the hosts differ: "program: 1 on a, c; 2 on b | torch: 2.11.0 on c; 2.15.0 on a, b". Empty when all
/// are alike. A fact that a host does not state counts as the value "(none)". It is one line, as all that is told: logs
/// would show a line feed as `\n`.
[[nodiscard]] std::string world_differences(std::span<const HostFacts> hosts);

}  // namespace torchup
