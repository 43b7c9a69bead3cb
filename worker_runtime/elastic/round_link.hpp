#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "rendezvous/net/io/unique_fd.hpp"
#include "worker_runtime/place/agent_channel.hpp"

namespace torchup {

class RoundTalk;

/// The thread that listens to the agent, and what the program's thread asks of it.
///
/// When the round is over the flag is set first; then, until the program has left the round, what blocks it is ended,
/// again and again, for new connections may be made meanwhile. Nothing else is interrupted: who computes finds the flag
/// at its next collective, commit or optimizer's step. The thread is there from the beginning: at a fault it may be
/// that none can be started.
class RoundLink {
 public:
  /// `channel`: null where no agent speaks with us; then no round is ever over. `end_what_blocks` is called on the
  /// thread, and never outside of a round. `look_wanted`: on the thread too, when the agent asks how far this process
  /// is. Throws std::system_error when there is no descriptor.
  RoundLink(
      AgentChannel* channel, std::function<void()> end_what_blocks,
      std::function<void(std::uint64_t)> look_wanted = [](std::uint64_t) {});
  ~RoundLink();
  RoundLink(const RoundLink&) = delete;
  RoundLink& operator=(const RoundLink&) = delete;

  /// There is an agent that speaks with us.
  [[nodiscard]] bool is_open() const { return channel_ != nullptr && channel_->is_open(); }
  void stay();
  void leave();

  void enter_round();
  /// Nothing of the round can block any more. Waits until what is being ended has been.
  void leave_round();
  [[nodiscard]] bool is_over() const { return is_over_; }
  /// Why it is; empty: it goes on.
  [[nodiscard]] std::string over() const;

  /// Whether an exception that ended the program's part in the round is a consequence of its end. Waits for the agent's
  /// word where that is not known yet.
  [[nodiscard]] bool is_consequence(const std::string& text);
  /// Waits for the place in the next round: its variables. Nothing: the channel has ended.
  [[nodiscard]] std::optional<std::map<std::string, std::string>> park(std::int64_t step);

 private:
  void watch();
  /// All that the agent has said by now.
  void listen();
  void wake() const;

  AgentChannel* const channel_;
  const std::function<void()> end_what_blocks_;
  const std::function<void(std::uint64_t)> look_wanted_;
  const UniqueFd wake_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  const std::unique_ptr<RoundTalk> talk_;  ///< guarded by mutex_, as the next one
  bool ending_ = false;
  std::atomic<bool> is_over_{false};
  std::mutex blocking_mutex_;  ///< held while what blocks is being ended
  bool in_round_ = false;      ///< guarded by blocking_mutex_
  std::thread thread_;
};

}  // namespace torchup
