#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/net/coordinator/agent_sessions.hpp"

namespace torchup {

/// Why an agent at `address` that says this hello is not let in. Empty: it is. `proved`: it has proven the token.
[[nodiscard]] std::string why_unwelcome(const Hello& hello, const std::string& address, bool proved,
                                        const AgentSessionsOptions& options);

/// The newest version of the protocol that both speak; of an agent that is welcome.
[[nodiscard]] std::uint16_t common_version(const Hello& hello);

}  // namespace torchup
