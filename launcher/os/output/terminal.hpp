#pragma once

#include <sys/types.h>

namespace torchup {

/// Whether colours are wanted on a terminal: not with NO_COLOR, nor where TERM is unset or `dumb`.
[[nodiscard]] bool colours_wanted();
/// TERM=dumb: what is written there is never drawn over.
[[nodiscard]] bool is_dumb_terminal();
/// As it says; 80 where it does not.
[[nodiscard]] int terminal_columns(int terminal);
/// Whether what `process` draws there disturbs nobody: the shell that has started it in the background has not taken
/// the terminal back, and no program reads single keys (a pager, an editor, a line that is being edited).
[[nodiscard]] bool may_draw(pid_t process, int terminal);

}  // namespace torchup
