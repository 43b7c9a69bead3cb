#pragma once

#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// A terminal of our own making: a worker that writes to `slave` believes that people watch, and we read what it writes
/// from `master`, byte for byte (OPOST and ECHO are off). Reading fails with EIO once all slaves are closed.
struct Pty {
  UniqueFd master;  ///< non-blocking
  UniqueFd slave;   ///< becomes nobody's controlling terminal by being opened
};

/// With the settings and window size of the terminal `like`. Errors: the system's (no ptys left).
Result<Pty> open_pty(int like);

/// Gives `pty_master` the window size of the terminal `like`; its foreground processes get SIGWINCH.
void copy_window_size(int like, int pty_master);

}  // namespace torchup
