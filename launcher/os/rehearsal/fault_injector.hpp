#pragma once

#include <sys/types.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/agent/agent_events.hpp"
#include "launcher/os/worker/guardian.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// Brings about a rehearsal's faults (core/rehearsal/rehearsal): signals, stops and slows workers, stops and kills this
/// node, cuts its link. Lives on the loop.
class FaultInjector {
 public:
  struct Hooks {
    /// A signal to the process group of the worker that runs as `pid`. False: there is none, or it is another user's.
    std::function<bool(LocalRank worker, std::int64_t pid, int number)> signal;
    std::function<void(FaultAnswered)> answer;
    /// As AgentLink::set_cut.
    std::function<bool(bool cut)> cut;
  };
  FaultInjector(asio::io_context& loop, const Guarded& guarded, Hooks hooks);

  void perform(const InjectFault& action);
  /// Whoever is stopped goes on, and is not stopped again.
  void release();
  /// A child that no sweep may end: the one that brings about a fault of this node.
  [[nodiscard]] std::optional<pid_t> helper() const;

 private:
  /// A worker that is stopped once, or again and again.
  struct Held {
    Held(asio::io_context& loop, LocalRank who, std::int64_t process) : local_rank{who}, pid{process}, timer{loop} {}
    LocalRank local_rank;
    std::int64_t pid;
    asio::steady_timer timer;
    TimePoint ends{};
    Duration stops{0};  ///< of each period
    Duration runs{0};   ///< and then so long; 0: it is stopped until the end
    bool stopped = false;
  };
  struct Helper {
    pid_t pid = -1;
    asio::posix::stream_descriptor watch;  ///< its pidfd
  };

  void kill(const InjectFault& action);
  void hold(const InjectFault& action);
  void wait(const std::shared_ptr<Held>& held, TimePoint until);
  void turn(const std::shared_ptr<Held>& held);
  void let_run(Held& held);
  void strike();
  void cut(const InjectFault& action);
  void answer(const InjectFault& action, std::string why = {});

  asio::io_context& loop_;
  const Guarded& guarded_;
  Hooks hooks_;
  std::vector<std::shared_ptr<Held>> held_;
  asio::steady_timer cut_timer_;
  TimePoint cut_ends_{};
  std::deque<InjectFault> of_node_;  ///< one after the other: two at once would stop each other's helper
  std::optional<Helper> helper_;     ///< while it lives
};

}  // namespace torchup
