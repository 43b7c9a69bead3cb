#include "rendezvous/net/store/worker_keys.hpp"

#include "rendezvous/net/store/store_client.hpp"

namespace torchup {
namespace {

/// Longer than any store of workers needs; one that answers as slowly as it may would keep us for days.
constexpr Duration emptying_limit = std::chrono::seconds{30};

}  // namespace

void delete_worker_keys(StoreClient& client) {
  const TimePoint until = std::chrono::steady_clock::now() + emptying_limit;
  const auto keys = client.list_keys();
  if (!keys) return;
  for (const std::string& key : *keys) {
    if (key.starts_with("torch.rendezvous.")) continue;
    if (!client.delete_key(key) || std::chrono::steady_clock::now() >= until) return;
  }
}

void delete_worker_keys(const std::string& address, Port port, Duration limit) {
  const auto client = StoreClient::connect({.host = address, .port = port, .timeout = limit});
  if (client) delete_worker_keys(**client);
}

}  // namespace torchup
