#include "launcher/os/worker/worker.hpp"

#include <fcntl.h>

#include <cerrno>
#include <csignal>
#include <utility>

#include "launcher/os/io/child_end.hpp"
#include "launcher/os/machine/descendants.hpp"

namespace torchup {

using Descriptor = asio::posix::stream_descriptor;

Worker::Worker(asio::io_context& loop, WorkerId id, ChildProcess child, std::optional<SharedPage> page,
               Listener listener)
    : id_{id}, page_{std::move(page)}, channel_{loop, std::move(child.channel), std::move(listener.channel)},
      watch_{loop, child.pidfd.release()} {
  watch_.async_wait(Descriptor::wait_read, [this, ended = std::move(listener.ended)](boost::system::error_code error) {
    if (error) return;
    const auto tell = std::move(ended);
    tell(reap_child(pid()));
  });
}

UniqueFd Worker::page() const { return UniqueFd{page_ ? ::fcntl(page_->fd(), F_DUPFD_CLOEXEC, 0) : -1}; }

std::optional<WorkerProgress> Worker::progress() const { return page_ ? page_->read(pid()) : std::nullopt; }

bool Worker::opened_page() const { return page_ && page_->is_open(pid()); }

std::optional<HookPage> Worker::hook() const { return page_ ? page_->hook() : std::nullopt; }

WorkerRemains Worker::remains(int exit_code) const {
  if (!page_) return {};
  return {progress(), hook(), exit_code < 0 ? read_sheet(page_->fd()) : std::string{}};
}

bool Worker::signal(int number) {
  const bool refused = ::kill(-pid(), number) != 0 && errno == EPERM;
  return !refused || std::exchange(refusal_told_, true);
}

void Worker::abort() const {
  ::kill(pid(), SIGABRT);
  ::kill(pid(), SIGCONT);
}

void Worker::drain(int number, bool insist) {
  if (page_) page_->request_drain();
  if (number == 0 || opened_page() || drain_signalled_) return;
  if (!insist && !catches_signal(pid(), number)) return;
  drain_signalled_ = true;
  static_cast<void>(signal(number));
}

}  // namespace torchup
