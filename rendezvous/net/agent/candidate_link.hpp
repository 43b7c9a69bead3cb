#pragma once

#include <memory>

#include "rendezvous/net/agent/attach.hpp"
#include "rendezvous/net/coordinator/agent_link.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// The link of an agent whose job has its coordinator in any of its agents (AttachSettings::etcd): this process is a
/// candidate too. To its own coordinator it speaks as to any other, through a socket, so that one rule says when it
/// fences and where it goes.
///
/// Before the end the seat is given back: after the job's verdict when all others have heard it, else at once.
[[nodiscard]] std::unique_ptr<AgentLink> candidate_link(boost::asio::io_context& loop, AttachSettings settings,
                                                        AgentLink::Handler handler);

}  // namespace torchup
