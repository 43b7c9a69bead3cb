#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "launcher/os/worker/child_process.hpp"
#include "rendezvous/net/io/asio.hpp"

namespace torchup {

/// One process forked from the template, from the order to make it until it is a worker or gone. It waits, *parked*,
/// for the order to start, in a session of its own, and is a child of this process's main thread. Lives on the loop.
///
/// What it says over its pair is a stranger's word; its pid is the kernel's. A packet that it has no reason to send
/// ends it.
class ParkedProcess {
 public:
  enum class State {
    being_made,
    parked,
    starting,  ///< it was told to
    started,   ///< it runs the program: take()
    refused,   ///< it could not become what it was told, and ends
    gone,
  };
  /// `channel` is our end of its pair, `inode` that of its own, `maker` the template that makes it. `changed` is called
  /// on the loop after each change of state; it may destroy this.
  ParkedProcess(asio::io_context& loop, UniqueFd channel, std::uint64_t inode, pid_t maker,
                std::function<void()> changed);
  ParkedProcess(const ParkedProcess&) = delete;
  ParkedProcess& operator=(const ParkedProcess&) = delete;

  [[nodiscard]] State state() const { return state_; }
  /// 0: not known yet, or gone.
  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] pid_t maker() const { return maker_; }
  /// Its end of the pair, as the worker that it becomes finds it.
  [[nodiscard]] WorkerChannelAddress address() const { return {channel_descriptor, inode_, pid_}; }
  /// Whether it is gone before it ever was, and nobody has killed it.
  [[nodiscard]] bool could_not_park() const { return state_ == State::gone && !has_parked_ && !killed_; }
  [[nodiscard]] const Error& refusal() const { return refusal_; }

  /// Reads what it has said by now. By the time that it is our child, it has a pid here.
  void catch_up();
  /// Tells it to start. `descriptors`: the request, its standard streams, its page if it has one.
  void start(std::span<const int> descriptors);
  /// The worker that it has become.
  [[nodiscard]] ChildProcess take();
  /// SIGKILL; to one that is being made, as soon as it is there. It is never `parked` then, and ends as `gone`.
  void kill();
  /// One that is being made counts for nothing from now on: its channel is closed, and it is killed if it is our child.
  /// It is `gone` at once, and `changed` follows on the loop.
  void abandon();

 private:
  using Descriptor = asio::posix::stream_descriptor;
  void wait_for_words();
  void tell();
  void tell_soon();
  bool read();
  void hear(const std::string& text, pid_t sender);
  void has_pid(pid_t pid);
  void end();
  void send_kill();

  Descriptor channel_;
  const std::uint64_t inode_;
  const pid_t maker_;
  Descriptor process_;  ///< its pidfd
  std::function<void()> changed_;
  State state_ = State::being_made;
  pid_t pid_ = 0;
  bool has_parked_ = false;
  bool killed_ = false;
  std::string outside_cgroup_;
  Error refusal_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< for what is posted
};

}  // namespace torchup
