#include "rendezvous/net/daemon/torchrun_refusal.hpp"

#include "rendezvous/core/torchrun/torchrun_care.hpp"

namespace torchup {

TorchrunRefusal::TorchrunRefusal(StoreServer& server) : server_{server} { server_.watch(torchrun_keys, *this); }

StoreWatcher::Taken TorchrunRefusal::takes(ClientId client, Request& request) {
  if (request.query == Query::get) return Taken::no;
  server_.refuse(client,
                 "an agent of torchrun's: it cannot prove the token of the jobs here; start torchup on that node, or "
                 "this coordinator without a token");
  return Taken::yes;
}

}  // namespace torchup
