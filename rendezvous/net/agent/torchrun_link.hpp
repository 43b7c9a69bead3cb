#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/net/coordinator/agent_link.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

struct TorchrunLinkSettings {
  Endpoint endpoint = {};
  RunId run_id{""};
  std::string local_addr = {};  ///< how others reach this node; empty: the address that leads to the endpoint
  /// The nodes have their group ranks by --node-rank, and workers meet at the endpoint.
  bool is_static = false;
};

/// A link to a rendezvous that a torchrun agent hosts: core/torchrun_part on PyTorch's store, on a thread of its own,
/// for the client blocks.
///
/// `ready` is called once, from the loop: false when no PyTorch store answers at the endpoint; then the link is of no
/// use. LinkLost 67 when the hosting agent has ended before the job. One that is out of reach is tried again for the
/// join timeout; our workers stop when the lease is over, and the node joins anew when it is found.
[[nodiscard]] std::unique_ptr<AgentLink> connect_torchrun(boost::asio::io_context& loop, TorchrunLinkSettings settings,
                                                          std::function<void(bool is_store)> ready,
                                                          AgentLink::Handler handler);

}  // namespace torchup
