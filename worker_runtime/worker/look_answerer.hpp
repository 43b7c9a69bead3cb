#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "rendezvous/net/io/unique_fd.hpp"
#include "worker_runtime/place/agent_channel.hpp"
#include "worker_runtime/place/worker_page.hpp"

namespace torchup {

/// The thread by which the agent knows how far this process is in its groups: each second it puts their counts into the
/// page, and it answers `look`. It begins with the first group, and reads the channel unless that is lent.
class LookAnswerer {
 public:
  /// Both outlive it. `channel`: null where the agent does not speak with us. Throws std::system_error when there is no
  /// descriptor.
  LookAnswerer(WorkerPage& page, AgentChannel* channel);
  ~LookAnswerer();
  LookAnswerer(const LookAnswerer&) = delete;
  LookAnswerer& operator=(const LookAnswerer&) = delete;

  /// The agent has asked question `number`. A later one takes its place where it is not answered yet.
  void ask(std::uint64_t number);
  /// While it is lent somebody else reads the channel, and asks for the agent. Nothing is being read once this returns.
  void lend_channel(bool lent);
  /// The last counts, then no more.
  void stop();

 private:
  void start();
  void run();
  void wait(int limit_ms);
  /// The question that is to be answered.
  [[nodiscard]] std::optional<std::uint64_t> take_question();
  void answer(std::uint64_t number);
  void wake() const;

  WorkerPage& page_;
  AgentChannel* const channel_;
  const UniqueFd wake_;
  std::mutex mutex_;
  bool lent_ = false;  ///< guarded by mutex_, as the next ones
  bool stopping_ = false;
  std::optional<std::uint64_t> question_;
  const pid_t process_;  ///< a child of it has no such thread
  std::thread thread_;
};

/// A loan of the channel, for as long as this lives.
class ChannelLoan {
 public:
  /// `answerer`: null where there is none.
  explicit ChannelLoan(LookAnswerer* answerer) : answerer_{answerer} {
    if (answerer_ != nullptr) answerer_->lend_channel(true);
  }
  ~ChannelLoan() {
    if (answerer_ != nullptr) answerer_->lend_channel(false);
  }
  ChannelLoan(const ChannelLoan&) = delete;
  ChannelLoan& operator=(const ChannelLoan&) = delete;

  void ask(std::uint64_t number) const {
    if (answerer_ != nullptr) answerer_->ask(number);
  }

 private:
  LookAnswerer* const answerer_;
};

}  // namespace torchup
