#pragma once

#include <cstddef>
#include <string>

#include "launcher/core/record/incident.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {

/// What Kubernetes keeps of a container's termination message: of a longer file the end.
inline constexpr std::size_t termination_bytes_max = 4'096;
/// Of the verdict, of the incident's summary and of the failed worker's message each, so that there is room for others.
inline constexpr std::size_t termination_part_bytes_max = 1'024;

/// What a container says of its end, where the verdict is another than 0: the verdict; the root cause with rank, host
/// and code; its message, of a traceback the end; the last lines of its output, as many of them as fit. Lines of valid
/// UTF-8 that steer no terminal, at most termination_bytes_max, with a line feed behind each.
///
/// `exit_code` is the launcher's, `incident` this node's, null where there is none; of a root cause on another node the
/// verdict tells, and where it names no failure there is none to tell of.
[[nodiscard]] std::string termination_text(int exit_code, const Verdict& verdict, const Incident* incident);

}  // namespace torchup
