#pragma once

#include <csignal>
#include <optional>
#include <string>
#include <string_view>

/// Signals by number and by name, and the exit codes that stand for them.
namespace torchup {

/// `SIGTERM` for 15; empty for a number without a name in Python's signal.Signals (which knows SIGRTMIN and SIGRTMAX,
/// but none between them).
[[nodiscard]] std::string signal_name(int signal);

/// `SIGTERM` for 15, `signal 40` for 40.
[[nodiscard]] std::string signal_text(int signal);

/// 15 for `SIGTERM`, `TERM` and `15`. Nothing for what is no signal of this system.
[[nodiscard]] std::optional<int> signal_number(std::string_view name);

/// Whether a user may give this signal a meaning (--signals-to-handle, --forward-signals, --drain-signals). Not those
/// that nobody can catch, that a fault of the launcher's own raises, or that the launcher needs itself: SIGCHLD, Ctrl-Z
/// and its end, the terminal's size.
[[nodiscard]] bool is_for_users(int signal);

/// By this the front of a fan-out tells an agent that its node is to leave, as by SIGTERM, whatever users let their
/// signals mean: this one is not for them. To other agents it says nothing.
inline constexpr int dismissal_signal = SIGURG;

/// A shell's exit code for the death by a signal, which is also ours where a signal ended the job: 143 for SIGTERM.
[[nodiscard]] int shell_code(int signal);

/// The other way: 15 for 143. Nothing for an exit code that stands for no signal.
[[nodiscard]] std::optional<int> signal_of_shell_code(int exit_code);

}  // namespace torchup
