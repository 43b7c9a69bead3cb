#include "rendezvous/net/store/worker_keys.hpp"

#include "rendezvous/net/store/store_client.hpp"

namespace torchup {

void delete_worker_keys(StoreClient& client) {
  const auto keys = client.list_keys();
  if (!keys) return;
  for (const std::string& key : *keys) {
    if (!key.starts_with("torch.rendezvous.") && !client.delete_key(key)) return;
  }
}

void delete_worker_keys(const std::string& address, Port port, Duration limit) {
  const auto client = StoreClient::connect({.host = address, .port = port, .timeout = limit});
  if (client) delete_worker_keys(**client);
}

}  // namespace torchup
