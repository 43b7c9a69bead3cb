#pragma once

#include <memory>
#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/port/store_channels.hpp"
#include "rendezvous/core/text/log_line.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

class StoreServer;

struct StoreGateOptions {
  std::string bind = {};  ///< as in StoreServerOptions, like the port
  Port port{0};
  StoreKey key{};          ///< links of this round's store bring it
  std::string token = {};  ///< and speak TLS with it; empty: there is none
  LogSink log = {};
};

/// A port at which nodes reach a store with --store-proxy, and nobody else does: it admits links alone
/// (core/port/store_channels), each of which carries its node's workers. A worker costs no descriptor here.
///
/// Who is silent, speaks another language (TCPStore's too), or brings another key is closed with one line in the log.
class StoreGate {
 public:
  /// The server must outlive it, and serves on the same loop.
  StoreGate(boost::asio::io_context& loop, StoreServer& server, StoreGateOptions options);
  StoreGate(const StoreGate&) = delete;
  StoreGate& operator=(const StoreGate&) = delete;
  ~StoreGate();  ///< closes all links

  /// Errors: the system's, with address and port; errc::refused without OpenSSL where there is a token.
  [[nodiscard]] Result<Port> listen();
  [[nodiscard]] std::size_t link_count() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace torchup
