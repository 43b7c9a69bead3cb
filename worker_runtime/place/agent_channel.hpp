#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// The worker's end of the channel between it and its agent: packets, whose words are another room's affair
/// (rendezvous/base/worker_channel.hpp).
class AgentChannel {
 public:
  /// The socket that the environment names, if it is still the channel and meant for this process. It becomes
  /// close-on-exec and leaves the environment, so that no process started from here takes it for its own. Null: the
  /// worker is a plain one.
  static std::unique_ptr<AgentChannel> open();
  explicit AgentChannel(UniqueFd socket) : socket_{std::move(socket)} {}

  /// Readable when the agent has said something, or has ended the channel.
  [[nodiscard]] int fd() const { return socket_.get(); }
  [[nodiscard]] bool is_open() const { return open_; }
  /// From any thread. Nothing happens where the channel has ended: who reads hears of that.
  void say(const std::string& packet);
  /// The next packet, of worker_packet_bytes_max + 1 bytes where it is longer; nothing: there is none by now, or the
  /// channel has ended. Does not wait. From one thread.
  [[nodiscard]] std::optional<std::string> read();
  /// Nothing is said or heard any more.
  void end();

 private:
  const UniqueFd socket_;
  std::atomic<bool> open_{true};
};

}  // namespace torchup
