#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/base/worker_channel.hpp"
#include "rendezvous/net/io/asio.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// Both ends of a new channel.
struct ChannelPair {
  UniqueFd ours;
  UniqueFd theirs;
  std::uint64_t inode = 0;  ///< of theirs
};
/// Errors: the system's.
[[nodiscard]] Result<ChannelPair> make_channel_pair();

/// How a channel ends.
struct ChannelEnd {
  std::string reason = {};  ///< what was wrong; empty: the worker has closed it
  bool deaf = false;        ///< and has not read all that was said to it
};

/// Ours of the two ends of a worker's channel (rendezvous/base/worker_channel.hpp). Lives on the loop.
///
/// The worker is a stranger. A packet that cannot be read, a worker that does not read what we say, and the end of its
/// end end the channel; the worker is a plain one from then on. One that says very much waits: no more than
/// `words_at_once` are read before the loop gets a pause.
class WorkerChannel {
 public:
  static constexpr int words_at_once = 16;
  static constexpr Duration pause = std::chrono::milliseconds{10};

  struct Listener {
    std::function<void(WorkerWord)> heard;
    /// Once: nothing more is heard, and nothing can be said.
    std::function<void(ChannelEnd end)> ended;
  };
  /// `ours` may be empty: then there is no channel, and nobody is told. Either handler may destroy this.
  WorkerChannel(asio::io_context& loop, UniqueFd ours, Listener listener);
  WorkerChannel(const WorkerChannel&) = delete;
  WorkerChannel& operator=(const WorkerChannel&) = delete;

  [[nodiscard]] bool is_open() const { return socket_.is_open(); }
  /// False: it cannot be said. Then the channel ends, which is told later.
  bool say(const AgentWord& word);

 private:
  void wait();
  void read();
  void end(ChannelEnd how);

  boost::asio::posix::stream_descriptor socket_;
  boost::asio::steady_timer timer_;
  Listener listener_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  ///< for what is posted, and for handlers that destroy
};

}  // namespace torchup
