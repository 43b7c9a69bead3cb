#include "launcher/os/agent/heard_signals.hpp"

#include <algorithm>
#include <csignal>

#include "launcher/os/agent/signal_source.hpp"

namespace torchup {

void HeardSignals::take(const signalfd_siginfo& info) {
  const auto number = static_cast<int>(info.ssi_signo);
  if (number == SIGCHLD) return parts_.sweep.child_ended();
  if (number == SIGWINCH) {
    parts_.output.window_changed();
    return parts_.workers.signal_all(number);  // their terminals are nobody's controlling one: the kernel tells nobody
  }
  if (!is_wish(info, guarded_.hangup_ignored, config_.behind_front)) return;
  const bool forwarded = std::ranges::find(config_.forward_signals, number) != config_.forward_signals.end();
  if (parts_.job.finishing() && !forwarded) return is_end_signal(number) ? parts_.output.hurry() : void();
  tell_(SignalArrived{number, static_cast<pid_t>(info.ssi_pid) == guarded_.outer});
}

/// Who sends one has enough. Ctrl-Z and fg, say, go to everybody in a pipeline, and mean nobody's end.
bool HeardSignals::is_end_signal(int number) const {
  return number == SIGINT || number == SIGQUIT ||
         std::ranges::find(config_.end_signals, number) != config_.end_signals.end();
}

}  // namespace torchup
