#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"

namespace torchup {

inline constexpr std::size_t hostlist_hosts_max = 65536;
/// Of all names together: a few letters stand for many.
inline constexpr std::size_t hostlist_bytes_max = std::size_t{2} << 20;
/// In one name: each copies all names that those before it made.
inline constexpr int hostlist_brackets_max = 4;

/// Expands a list of hosts as Slurm writes it: "gpu[01-03,7],login" is gpu01 gpu02 gpu03 gpu7 login. Several brackets
/// in one name multiply; zeros at the start keep their width. An empty text is an empty list.
///
/// Errors: errc::bad_value for unbalanced brackets, an empty name, one with control characters, a range that runs
/// backwards; errc::limit_exceeded for more than hostlist_hosts_max hosts or hostlist_bytes_max bytes, for a host
/// of more than name_bytes_max bytes and for more than hostlist_brackets_max brackets in one name. Nothing larger than
/// that is made on the way.
[[nodiscard]] Result<std::vector<std::string>> expand_hostlist(std::string_view text);

}  // namespace torchup
