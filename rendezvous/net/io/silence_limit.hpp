#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>

#include "rendezvous/base/types.hpp"

namespace torchup {

/// For both ends of a store's connection, where nobody asks for another limit.
inline constexpr Duration store_silence_max = std::chrono::seconds{90};

/// How long the kernel waits for a sign of a peer's machine, in traffic and without, before it gives the connection up.
/// A listening socket passes it on to the connections that it accepts. From 1 s to the kernel's own limits, which are
/// weeks.
inline void limit_silence(int socket, Duration limit) {
  constexpr std::int64_t kernel_seconds_max = 32'767, probes = 3;
  const std::int64_t milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  const auto set = [&](int level, int option, std::int64_t value, std::int64_t most) {
    const int number = static_cast<int>(std::clamp<std::int64_t>(value, 1, most));
    ::setsockopt(socket, level, option, &number, sizeof number);
  };
  // Half of the time without a word, then as many probes as fill the other half.
  set(SOL_SOCKET, SO_KEEPALIVE, 1, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, milliseconds / 2 / 1000, kernel_seconds_max);
  set(IPPROTO_TCP, TCP_KEEPINTVL, milliseconds / 2 / probes / 1000, kernel_seconds_max);
  set(IPPROTO_TCP, TCP_KEEPCNT, probes, probes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, std::max<std::int64_t>(1000, milliseconds), std::numeric_limits<int>::max());
}

}  // namespace torchup
