#pragma once

#include "rendezvous/net/store/store_server.hpp"

namespace torchup {

/// Keeps torchrun's agents away from a store whose jobs have a token: they cannot prove it, and what they write decides
/// over a job. A client that writes such a key is closed, with a line in the log that says why.
class TorchrunRefusal final : public StoreWatcher {
 public:
  /// From now on, to the end of the server's loop; the server must outlive this.
  explicit TorchrunRefusal(StoreServer& server);

  Taken takes(ClientId client, Request& request) override;
  void compared(ClientId, std::string_view) override {}
  void gone(ClientId) override {}

 private:
  StoreServer& server_;
};

}  // namespace torchup
