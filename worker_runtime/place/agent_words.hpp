#pragma once

#include <optional>

#include "rendezvous/base/worker_channel.hpp"
#include "worker_runtime/place/agent_channel.hpp"

namespace torchup {

/// The agent's next word; nothing: there is none by now, or the channel has ended. Does not wait. From one thread at a
/// time.
///
/// The agent is taken for a stranger: what cannot be read ends the channel, and stderr says why. A word of a newer
/// agent is passed over.
[[nodiscard]] std::optional<AgentWord> next_word(AgentChannel& channel);

}  // namespace torchup
