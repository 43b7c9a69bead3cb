#include "launcher/core/options/event_names.hpp"

#include <algorithm>
#include <array>

namespace torchup {
namespace {

constexpr std::array<std::string_view, 48> recorded_events{
    "attempt_ended",
    "attempt_started",
    "closing_signal_sent",
    "console_lost",
    "error_file_refused",
    "fault",
    "fault_injected",
    "hang_found",
    "hang_over",
    "hook_failed",
    "incident_recorded",
    "job_ended",
    "job_started",
    "log_write_failed",
    "membership_changed",
    "node_unfit",
    "notice",
    "order_received",
    "preflight",
    "preload_given_up",
    "progress",
    "ranks_shown",
    "rehearsal_ended",
    "restarting",
    "round_completed",
    "signal_received",
    "spawn_failed",
    "state_saved",
    "stopping",
    "store_refused",
    "takeover",
    "straggler_found",
    "straggler_over",
    "template_lost",
    "template_ready",
    "time_ends",
    "timer_expired",
    "waiting",
    "warning",
    "worker_abandoned",
    "worker_exited",
    "worker_hung",
    "worker_kept",
    "worker_killed",
    "worker_seen",
    "worker_started",
    "worker_stopped",
    "worker_uninterruptible",
};

}  // namespace

std::span<const std::string_view> event_names() { return recorded_events; }

bool is_event_name(std::string_view name) { return std::ranges::binary_search(recorded_events, name); }

}  // namespace torchup
