#pragma once

#include "launcher/ctl/command.hpp"

/// What torchupctl does, one function a verb: each prints what is asked for on stdout, everything else on stderr, and
/// returns the exit code.
namespace torchup {

[[nodiscard]] int run_ps(const Command& command);
[[nodiscard]] int run_status(const Command& command);
[[nodiscard]] int run_top(const Command& command);
[[nodiscard]] int run_events(const Command& command);

[[nodiscard]] int run_logs(const Command& command);
[[nodiscard]] int run_stacks(const Command& command);

[[nodiscard]] int run_stop(const Command& command);
[[nodiscard]] int run_restart(const Command& command);
[[nodiscard]] int run_resize(const Command& command);
/// drain and undrain.
[[nodiscard]] int run_drain(const Command& command);
[[nodiscard]] int run_wait(const Command& command);
[[nodiscard]] int run_page(const Command& command);

[[nodiscard]] int run_gpus(const Command& command);

[[nodiscard]] int run_ledger(const Command& command);
[[nodiscard]] int run_report(const Command& command);
[[nodiscard]] int run_timeline(const Command& command);
[[nodiscard]] int run_explain(const Command& command);

/// Writes to stdout. 1 where that fails, for an answer that nobody can read in full is none; else `code`.
[[nodiscard]] int give(std::string_view text, int code = CtlExit::done);

/// Whether stdout is for people who see colours.
[[nodiscard]] bool shows_colours();

}  // namespace torchup
