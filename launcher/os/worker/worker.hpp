#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <optional>

#include "launcher/core/record/launch_event.hpp"
#include "launcher/os/io/shared_page.hpp"
#include "launcher/os/worker/child_process.hpp"
#include "launcher/os/worker/worker_channel.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// The life of one worker's process, from its start to its end: whatever attempt or round it belongs to. Lives on the
/// loop.
class Worker {
 public:
  struct Listener {
    /// Once, when the process is gone and reaped; it may destroy this.
    std::function<void(int exit_code)> ended;
    WorkerChannel::Listener channel;
  };
  /// `page`: nothing where the system gave none; the worker does without. The listener is called on the loop.
  Worker(asio::io_context& loop, WorkerId id, ChildProcess child, std::optional<SharedPage> page, Listener listener);
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  [[nodiscard]] const WorkerId& id() const { return id_; }
  [[nodiscard]] pid_t pid() const { return static_cast<pid_t>(id_.pid); }
  /// It has the rank of another round.
  void move_to(Rank rank) { id_.rank = rank; }
  /// As WorkerChannel::say.
  bool say(const AgentWord& word) { return channel_.say(word); }
  /// What its page says now.
  [[nodiscard]] std::optional<WorkerProgress> progress() const;
  /// Whether it has opened the page, to tell of steps.
  [[nodiscard]] bool opened_page() const;
  /// What the hook in it says now.
  [[nodiscard]] std::optional<HookPage> hook() const;
  /// Once it has ended.
  [[nodiscard]] WorkerRemains remains(int exit_code) const;
  /// A duplicate of its page's descriptor; empty: it has none, or there are too many open.
  [[nodiscard]] UniqueFd page() const;

  /// To its process group. False, once, when nobody in it may be signalled by us: they run as another user.
  bool signal(int number);
  /// To the process alone, which is continued if it was stopped.
  void abort() const;
  /// Asks it over the page to save and stop. One that has not opened its page gets `number`, once: if it has a handler
  /// for it, or if it must hear (`insist`).
  void drain(int number, bool insist);

 private:
  WorkerId id_;
  std::optional<SharedPage> page_;
  WorkerChannel channel_;
  boost::asio::posix::stream_descriptor watch_;  ///< its pidfd
  bool drain_signalled_ = false;
  bool refusal_told_ = false;
};

}  // namespace torchup
