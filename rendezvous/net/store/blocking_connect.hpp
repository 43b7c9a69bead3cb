#pragma once

#include <string>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Resolves `host` and connects to the first of its addresses that answers; blocks until `deadline` at most (a resolver
/// that is slow to fail may take longer). Tries again with growing pauses while the name is unknown or somebody
/// refuses, resets or does not answer, because that may pass; gives up at once when no address can ever work (no route,
/// …).
///
/// It ends with operation_canceled when the descriptor `cancel` is readable (-1: there is none).
///
/// The socket is non-blocking, close-on-exec and sends without delay. The error names every address that was tried
/// last.
[[nodiscard]] Result<UniqueFd> blocking_connect(const std::string& host, Port port, TimePoint deadline,
                                                int cancel = -1);

/// Whether anybody listens there: each address is tried once.
[[nodiscard]] bool listens(const std::string& host, Port port, TimePoint deadline);

}  // namespace torchup
