#pragma once

#include "launcher/core/fan_out/remote_command.hpp"
#include "launcher/core/plan/plan.hpp"

namespace torchup {

/// `torchup --link`: speaks with the front of a fan-out over our standard input and output (core/link/link_codec).
///
/// Splits this process where the plan has come. Below is the agent, in which this returns: in the plan's directory,
/// with its environment; what it writes and what its coordinator says passes through the process above, which never
/// returns. That one is the agent's lifeline (core/fan_out/far_agent): it sends signals on, and ends with the agent, or
/// ends the agent where the front is gone. SIGKILL of it ends the agent too.
///
/// First thing in main, before any thread.
[[nodiscard]] LinkedNode link_agent(LinkStart start);

}  // namespace torchup
