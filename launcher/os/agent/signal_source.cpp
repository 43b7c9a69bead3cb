#include "launcher/os/agent/signal_source.hpp"

#include <unistd.h>

#include <csignal>
#include <utility>

#include "launcher/core/text/signals.hpp"
#include "launcher/os/worker/guardian.hpp"

namespace torchup {

using Descriptor = asio::posix::stream_descriptor;

bool is_wish(const signalfd_siginfo& info, bool hangup_ignored, bool behind) {
  switch (static_cast<int>(info.ssi_signo)) {
    case SIGCHLD:
    case SIGWINCH:
      return false;
    case dismissal_signal:
      return behind;
    case SIGXFSZ:
      return static_cast<pid_t>(info.ssi_pid) != ::getpid();  // a write of ours beyond ulimit -f has failed
    case SIGHUP:
      return !hangup_ignored;
    default:
      return true;
  }
}

SignalSource::SignalSource(asio::io_context& loop, UniqueFd lifeline,
                           std::function<void(const signalfd_siginfo&)> arrived, std::function<void()> alone)
    : arrived_{std::move(arrived)}, alone_{std::move(alone)}, signals_{loop}, lifeline_{loop, lifeline.release()} {}

void SignalSource::start() {
  const sigset_t signals = guarded_signals();
  signals_.assign(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  wait_for_signal();
  lifeline_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
    if (!error) alone_();
  });
}

void SignalSource::wait_for_signal() {
  signals_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
    if (error) return;
    signalfd_siginfo info{};
    while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info) arrived_(info);
    wait_for_signal();
  });
}

}  // namespace torchup
