#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/text/endpoint.hpp"

namespace torchup {

inline constexpr std::size_t endpoints_max = 8;
inline constexpr Port etcd_default_port{2379};

/// "a:29400,b,[2001:db8::1]:29400": one to endpoints_max endpoints in the order in which they are tried, each as
/// parse_endpoint reads it; whoever is named twice is tried once. An empty text is localhost.
///
/// Errors: errc::bad_value and errc::limit_exceeded, each with the thing, the reason and the remedy.
[[nodiscard]] Result<std::vector<Endpoint>> parse_endpoints(std::string_view text,
                                                            Port default_port = c10d_default_port);

}  // namespace torchup
