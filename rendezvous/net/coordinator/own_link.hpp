#pragma once

#include <memory>

#include "rendezvous/base/types.hpp"
#include "rendezvous/net/coordinator/agent_link.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class Coordinator;

/// The link of an agent that shares a process with its coordinator. What it says and hears takes one turn of the loop,
/// so neither is ever called from within the other.
[[nodiscard]] std::unique_ptr<AgentLink> own_link(boost::asio::io_context& loop, Coordinator& coordinator, RunId run_id,
                                                  AgentLink::Handler handler);

}  // namespace torchup
