#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

inline constexpr std::size_t hosts_max = 1024;  ///< that agents are started on
inline constexpr std::size_t hostfile_bytes_max = std::size_t{1} << 20;
inline constexpr std::size_t hostfile_line_bytes_max = std::size_t{4} << 10;

/// A host that an agent is to be started on.
struct Host {
  std::string name;               ///< as the remote shell takes it: "gpu7", "me@gpu7", "fe80::7"
  std::optional<int> slots = {};  ///< workers there; nothing: one for each GPU
  std::string address = {};       ///< how the other hosts reach it; empty: found out
  friend bool operator==(const Host&, const Host&) = default;
};

/// Reads what --hosts says: names, as Slurm writes them too (`gpu[01-04]`), with `user@` before and `:SLOTS` behind
/// each, an IPv6 address in brackets; commas between.
///
/// Errors: errc::bad_value, one line that begins with "--hosts": no host, one that comes twice, a name that begins with
/// a dash (the remote shell would take it for an option), slots that are no number from 1 to local_workers_max.
/// errc::limit_exceeded for more than hosts_max hosts.
[[nodiscard]] Result<std::vector<Host>> parse_hosts(std::string_view list);

/// Reads a hostfile, one host a line: `name`, `name:8`, `name slots=8 max_slots=8 addr=10.0.0.7`, as Open MPI, MPICH,
/// DeepSpeed and Horovod have it. `#` begins a comment.
///
/// Errors: as parse_hosts, beginning with `file` and, where there is one, the line's number; also for words that are
/// not known, a file over hostfile_bytes_max and a line over hostfile_line_bytes_max.
[[nodiscard]] Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view file);

}  // namespace torchup
