#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

namespace torchup {

/// Where the nodes of a job meet.
struct Endpoint {
  std::string host = {};  ///< name or address, without brackets
  Port port{0};           ///< 0: any free one, which only a single machine can use
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// torchrun's default port for the c10d backend.
inline constexpr Port c10d_default_port{29400};

/// Reads "<host>[:<port>]"; an empty text is localhost. An IPv6 address with a port stands in brackets.
///
/// Errors: errc::bad_value, with torchrun's words first and the corrected form after them. Unlike torchrun, which
/// silently splits "2001:db8::1" at the last colon, an IPv6 address without brackets is refused.
/// Source: torch/distributed/elastic/rendezvous/utils.py, parse_rendezvous_endpoint.
[[nodiscard]] Result<Endpoint> parse_endpoint(std::string_view text, Port default_port = c10d_default_port);

/// A port in decimal digits, as torchrun's agents publish it; nothing for 0 and anything else.
[[nodiscard]] std::optional<Port> read_port(std::string_view text);

/// "host:port", with brackets around an IPv6 address.
[[nodiscard]] std::string to_string(const Endpoint& endpoint);

/// Whether a numeric address is the machine's own, which means nothing on another one.
[[nodiscard]] bool is_loopback(std::string_view address);

}  // namespace torchup
