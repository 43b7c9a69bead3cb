#pragma once

#include <sys/types.h>

namespace torchup {

/// Whether colours are wanted on a terminal: not with NO_COLOR, nor where TERM is unset or `dumb`.
[[nodiscard]] bool colours_wanted();
/// TERM=dumb: what is written there is never drawn over.
[[nodiscard]] bool is_dumb_terminal();
/// As it says; 80 where it does not.
[[nodiscard]] int terminal_columns(int terminal);
/// Whether this terminal is the one from which `process` was started and is its own now: no shell has taken it back.
[[nodiscard]] bool has_terminal(pid_t process, int terminal);

}  // namespace torchup
