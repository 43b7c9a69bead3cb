#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/port/store_channels.hpp"
#include "rendezvous/core/text/endpoint.hpp"
#include "rendezvous/core/text/log_line.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

struct StoreProxyOptions {
  Endpoint store = {};     ///< where the round's StoreGate is
  StoreKey key{};          ///< the round's
  std::string token = {};  ///< empty: there is none
  LogSink log = {};        ///< a link that was refused or broke
};

/// A port on loopback that looks to this node's workers like the round's store, and carries all of them to it over one
/// link, which is made when the first one comes.
///
/// A link that breaks closes its workers' connections, as a network would that is down; the next one that comes has it
/// made anew.
class StoreProxy {
 public:
  StoreProxy(boost::asio::io_context& loop, StoreProxyOptions options);
  StoreProxy(const StoreProxy&) = delete;
  StoreProxy& operator=(const StoreProxy&) = delete;
  ~StoreProxy();  ///< closes all connections

  /// At a free port of 127.0.0.1. Errors: the system's; errc::refused without OpenSSL where there is a token.
  [[nodiscard]] Result<Port> listen();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup
