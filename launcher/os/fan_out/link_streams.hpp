#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/link_codec.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

/// What the far end of a link (os/fan_out/link_agent) reads and writes, in its loop of poll: `watch` adds what is
/// waited for, `serve` does what has become possible.
namespace torchup {

/// Our standard input and output, which others may share: they stay blocking.
class LinkFront {
 public:
  using OnMessage = std::function<void(FrontMessage)>;
  using OnAgents = std::function<void(std::string_view)>;

  LinkFront();
  void write_raw(std::string_view bytes) { output_ += bytes; }
  void send(const FarMessage& message) { write(LinkChannel::control, encode(message)); }
  void write(LinkChannel channel, std::string_view bytes);
  /// Nobody is there any more.
  void close();

  void watch(std::vector<pollfd>& watched) const;
  /// Returns whether anything was heard.
  bool serve(const std::vector<pollfd>& watched, const OnMessage& on_message, const OnAgents& on_agents);

  /// End of file, or another language.
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] bool waits() const { return !output_.empty(); }
  /// No more should be read of what is to be sent.
  [[nodiscard]] bool is_full() const;

 private:
  bool read(const OnMessage& on_message, const OnAgents& on_agents);
  void look_at_input(const OnMessage& on_message, const OnAgents& on_agents);
  void look_at_control(const OnMessage& on_message);
  void send_output();

  bool is_socket_ = false;  ///< our standard output
  bool ended_ = false;
  std::string input_, control_, output_;
};

/// The agent's ends; empty: not asked for.
struct AgentEnds {
  UniqueFd out, err, connection, events, result;
};

/// Our ends of what the agent writes, and of its connection to the coordinator.
class AgentStreams {
 public:
  /// Once. Errors: the system's.
  [[nodiscard]] Result<AgentEnds> open(const LinkPlan& plan);
  /// Closes ours, in the process of the agent.
  void forget();

  void credit(std::size_t bytes) { credit_ += bytes; }
  /// What it writes is thrown away from now on, and its connection has ended.
  void deafen();
  void to_agent(std::string_view bytes);

  void watch(std::vector<pollfd>& watched, const LinkFront& front) const;
  void serve(const std::vector<pollfd>& watched, LinkFront& front);

  /// Its processes are gone: what lies in its pipes is all there is.
  void agent_ended() { agent_ended_ = true; }
  /// And was passed on.
  [[nodiscard]] bool drained() const;
  /// More lies before it than it will ever read.
  [[nodiscard]] bool overflowed() const { return overflowed_; }

 private:
  struct Stream {
    LinkChannel channel = LinkChannel::out;
    UniqueFd fd = {};
  };
  void read(Stream& stream, LinkFront& front);
  void send();
  [[nodiscard]] bool may_read(const Stream& stream, const LinkFront& front) const;

  std::array<Stream, 5> streams_{};
  std::size_t credit_ = link_window_bytes;
  std::string for_agent_;  ///< of the coordinator, that its socket did not take
  bool deaf_ = false;
  bool agent_ended_ = false;
  bool overflowed_ = false;
};

}  // namespace torchup
