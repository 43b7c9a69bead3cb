#pragma once

#include <memory>
#include <string>

#include "rendezvous/net/io/tls.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// Stands between a connection on which HTTP is spoken within TLS and the server of HTTP, which sees a socket as any:
/// returns that one. `first`: what was said on it already.
///
/// It takes no more than 64 KiB in each direction before the other side has taken it, and ends when both have, or 2 s
/// after the server. Errors: the system's.
[[nodiscard]] Result<UniqueFd> bridge_tls(boost::asio::io_context& loop, UniqueFd network,
                                          std::unique_ptr<TlsStream> tls, std::string first);

}  // namespace torchup
