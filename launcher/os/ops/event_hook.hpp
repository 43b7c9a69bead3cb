#pragma once

#include <sys/types.h>

#include <array>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/record/hook_queue.hpp"
#include "rendezvous/base/result.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Runs the command of --on-event (HookQueue says for what, and when): `sh -c`, with the event's line on stdin, the
/// variables TORCHUP_EVENT, TORCHUP_RUN_ID and TORCHUP_HOST, a session of its own; what it writes goes to our stderr.
/// Lives on the loop.
class EventHook {
 public:
  struct Hooks {
    std::function<void(EventBody)> record;                     ///< hook_failed
    std::function<Result<std::array<UniqueFd, 2>>()> streams;  ///< as Output::helper_streams
  };
  EventHook(asio::io_context& loop, const LaunchConfig& config, std::string host, Hooks hooks);
  EventHook(const EventHook&) = delete;
  EventHook& operator=(const EventHook&) = delete;
  ~EventHook();

  void happened(const LaunchEvent& event);
  /// The rounds are made in this process.
  void hosts() { step(hook::Hosts{}); }
  /// As HookQueue's, with a command and without.
  [[nodiscard]] bool tells_of_job() const { return queue_.tells_of_job(); }
  /// The job is over: waits for what is left to be told, hook_farewell at most.
  Task<> finish();
  /// Who runs for it, and what that has left behind: of no attempt.
  [[nodiscard]] std::vector<pid_t> spared();

 private:
  struct Child;
  void step(const hook::Event& event);
  void perform(const hook::Start& action);
  void perform(const hook::Kill&);
  void perform(const hook::Failed& action);
  Result<std::shared_ptr<Child>> start(const hook::Start& action);
  void watch(const std::shared_ptr<Child>& child);
  void ended(const std::shared_ptr<Child>& child);
  void arm();

  asio::io_context& loop_;
  const LaunchConfig& config_;
  const std::string host_;
  const Hooks hooks_;
  HookQueue queue_;
  std::optional<UniqueFd> output_;  ///< its stdout and stderr; nothing: not asked for yet
  std::shared_ptr<Child> running_;
  std::vector<std::shared_ptr<Child>> killed_;  ///< that are not gone yet
  std::deque<pid_t> sessions_;                  ///< of those that run, and of those that have left somebody behind
  asio::steady_timer timer_;
  Timer finished_;
  bool finishing_ = false;
};

}  // namespace torchup
