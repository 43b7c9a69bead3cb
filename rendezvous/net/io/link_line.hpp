#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/core/link/link_codec.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// What waits for a side that does not read: then the line is broken.
inline constexpr std::size_t link_unsent_bytes_max = std::size_t{4} << 20;

/// The front's end of a link (core/link/link_codec), over the descriptors of the command that leads to a host.
///
/// Everything that comes is read at once: control never waits behind output, for the host sends no more output than
/// was acknowledged. The agents' channel is a socket here, whose other end is the coordinator's. It keeps itself alive
/// until it is closed; no handler is called after `close`, nor from within a call.
class LinkLine : public std::enable_shared_from_this<LinkLine> {
 public:
  struct Handlers {
    std::function<void(std::string_view)> before;  ///< what a login shell has printed, before the greeting
    std::function<void(FarMessage)> message;
    /// Output, events, a result. To be acknowledged when it was taken.
    std::function<void(LinkChannel, std::string_view)> output;
    /// Once: an end of file, a silence of link_silence_max, bytes of another language. Nothing more is heard then.
    std::function<void(std::string why)> broken;
  };

  /// `in` is read, `out` written: pipes that are nobody else's, for they become non-blocking.
  LinkLine(boost::asio::io_context& loop, UniqueFd in, UniqueFd out, Handlers handlers);

  void start();
  void send(const FrontMessage& message);
  /// So much output was taken.
  void acknowledge(std::size_t bytes);
  /// The coordinator's end of the agents' channel; once. Errors: the system's.
  [[nodiscard]] Result<UniqueFd> open_agents();
  void close();

 private:
  using Descriptor = boost::asio::posix::stream_descriptor;

  void wait_input();
  void read_input();
  std::string_view look_at(std::string_view rest);
  bool look_for_greeting();
  void take(const LinkFrame& frame);
  void take_control(std::string_view bytes);
  void to_agents(std::string_view bytes);
  void wait_agents_output();
  void wait_agents();
  void read_agents();
  void append(LinkChannel channel, std::string_view bytes);
  void write();
  void wait_output();
  void watch();
  void shut();
  void fail(std::string why);

  Descriptor in_, out_, agents_;
  Handlers handlers_;
  boost::asio::steady_timer timer_;
  TimePoint heard_at_{};
  TimePoint said_at_{};
  bool greeted_ = false;
  bool closed_ = false;
  bool let_go_ = false;  ///< by its owner
  std::string input_;    ///< a frame's beginning; before the greeting, a line's
  std::string control_;  ///< a message's beginning
  std::string output_;   ///< frames that the kernel did not take
  bool waiting_output_ = false;
  std::string for_agents_;  ///< that the coordinator's socket did not take
  bool waiting_agents_output_ = false;
  bool waiting_agents_ = false;
  bool agents_ended_ = false;
  std::size_t taken_ = 0;  ///< output that is not acknowledged
};

}  // namespace torchup
