#pragma once

#include <optional>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// What a longer time is cut to.
inline constexpr Duration longest_time = duration_max;
/// Of `keep_alive_max_attempt`.
inline constexpr int keep_alive_attempts_max = 1'000'000;

/// What `--rdzv-conf` says; what it leaves out is empty.
struct RendezvousConf {
  std::optional<bool> is_host;
  std::optional<Duration> join_timeout;  ///< with the static rendezvous its `timeout`
  std::optional<Duration> last_call;
  std::optional<Duration> lease;  ///< keep_alive_interval times keep_alive_max_attempt, where either is given
  friend bool operator==(const RendezvousConf&, const RendezvousConf&) = default;
};

/// Reads `k1=v1,k2=v2` for the c10d rendezvous. Keys that nobody knows are passed over, as by torchrun; a value of a
/// known key is checked even where the key is of no effect here (close_timeout, heartbeat_timeout, read_timeout,
/// cas_backoff_max_seconds): a wrong one must not begin to matter when the job moves to torchrun.
///
/// Errors: errc::bad_value in torchrun's words; also for keys that have an option of their own and for store_type=file.
/// Source: torch/distributed/elastic/rendezvous/{utils,api,dynamic_rendezvous,c10d_rendezvous_backend}.py, 2.15.
[[nodiscard]] Result<RendezvousConf> read_c10d_conf(std::string_view text);

/// The same for the static rendezvous, which knows one key: `timeout`, in seconds.
[[nodiscard]] Result<RendezvousConf> read_static_conf(std::string_view text);

}  // namespace torchup
