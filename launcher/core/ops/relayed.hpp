#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

/// What a coordinator has answered, as an agent passes it on. Pure; what is no answer of a coordinator's is none here.
namespace torchup {

/// `GET /v1/jobs`, in which this agent's own job has the pid of its launcher, and the name of its program where a
/// coordinator that is no launcher knows none.
[[nodiscard]] std::optional<std::string> with_launcher(std::string_view jobs, std::string_view run_id, std::int64_t pid,
                                                       std::string_view name);

/// Of `GET /v1/jobs/ID`: the number of the job's newest event.
[[nodiscard]] std::optional<std::uint64_t> seq_of(std::string_view snapshot);

/// One of server-sent events. `data` is one line.
[[nodiscard]] std::string stream_frame(std::string_view event, std::string_view data);

struct RelayedEvents {
  /// A gap, where some are lost or `since` is neither 0 nor was a number there, and the events; empty: there are none.
  std::string frames = {};
  std::uint64_t next = 0;  ///< what is asked for goes on behind it
};
/// Of `GET /v1/jobs/ID/events?since=…`.
[[nodiscard]] std::optional<RelayedEvents> relayed_events(std::string_view answer, std::uint64_t since);

}  // namespace torchup
