#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace torchup {

/// What events are called that an agent records (launcher/RECORDS.md), in the order of the alphabet.
[[nodiscard]] std::span<const std::string_view> event_names();
[[nodiscard]] bool is_event_name(std::string_view name);

/// --on-event-kinds where nobody says others.
inline constexpr std::string_view default_hook_kinds = "incident_recorded,restarting,worker_hung,job_ended";
/// Of --on-event: a word of a new process may have 128 KiB, the kernel's limit.
inline constexpr std::size_t hook_command_bytes_max = std::size_t{64} << 10;

}  // namespace torchup
