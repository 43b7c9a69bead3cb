#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/tls.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

/// For a peer that does not read: two of the largest frames.
inline constexpr std::size_t unsent_bytes_max = std::size_t{2} << 20;
/// From a frame's first byte to its last.
inline constexpr Duration frame_limit = std::chrono::seconds{120};

/// What the unfinished frames and unsent bytes of many connections take up together.
struct FrameMemory {
  std::size_t bytes_max;
  std::function<void()> exceeded;  ///< called whenever there is more; must only queue
  std::size_t bytes = 0;
};

/// A connection between an agent and its coordinator: bytes in, bytes out, never blocking.
///
/// An idle one costs no buffer. It keeps itself alive until it is closed; `close` lets go of both callbacks, and no
/// call follows it.
class FrameSocket : public std::enable_shared_from_this<FrameSocket> {
 public:
  /// What is to become of what `OnInput` has left.
  enum class Rest {
    more,  ///< it is the beginning of a frame, and comes again with more behind it
    turn,  ///< there may be whole frames in it: it comes again once others have had their turn
    none,  ///< nothing more is read
  };
  /// Takes what it understands off the front of the input.
  using OnInput = std::function<Rest(std::string_view& input)>;
  /// The connection is gone. No error: the peer closed it in good order.
  using OnClosed = std::function<void(const boost::system::error_code& error)>;

  explicit FrameSocket(boost::asio::ip::tcp::socket socket);

  void start(OnInput on_input, OnClosed on_closed);
  /// An exception that `on_input` throws closes the connection; it is handed to `on_fault` first, also where `on_input`
  /// has closed it already. So the handler must hold what it uses.
  void on_fault(std::function<void(const std::exception& fault)> handler) { on_fault_ = std::move(handler); }
  /// From now on the connection is `tls`: what is read is its bytes, and `on_input` gets what they say. Before `start`,
  /// or by `on_input`, which leaves then what has come: it is the first of it.
  ///
  /// Where a handshake or a record fails, OnClosed tells errc::protocol_error; tls() has the reason, and `close` lets
  /// the peer know its own.
  void secure(std::unique_ptr<TlsStream> tls);
  [[nodiscard]] const TlsStream* tls() const { return tls_.get(); }  ///< null: it is not encrypted
  /// The peer has proven the token.
  [[nodiscard]] bool proved() const { return tls_ && tls_->proved(); }
  /// What an encrypted connection is made of, for others who go on with it. From within `on_input`; the last call.
  struct Parts {
    UniqueFd socket;
    std::unique_ptr<TlsStream> tls;
  };
  [[nodiscard]] Parts release();
  /// Takes now what has come, without waiting for the loop's turn. After `start`.
  void poll();
  /// Sends now what the kernel takes and the rest when it can. A peer that leaves unsent_bytes_max lying is closed.
  void write(std::string_view bytes);
  /// Says no more than what was written; the end comes when the peer closes, or by `close`.
  void close_after_writes();
  /// The peer sees an end of file, which tells it that this process ends, or needs the connection no more.
  void close();
  /// The peer sees a broken connection: this process lives on, and may speak again by another.
  void reset();
  /// Called when all that was written and had to wait has left.
  void on_drained(std::function<void()> handler) { on_drained_ = std::move(handler); }
  /// From a frame's first byte to its last; frame_limit unless it is set.
  void set_frame_limit(Duration limit) { frame_limit_ = limit; }
  /// From now on what this connection holds is part of `memory`.
  void count_in(std::shared_ptr<FrameMemory> memory) { memory_ = std::move(memory); }
  [[nodiscard]] std::size_t held_bytes() const { return counted_; }
  /// What was written and the kernel has not taken.
  [[nodiscard]] std::size_t unsent_bytes() const { return output_.size() - output_sent_; }
  /// How long the kernel waits for a peer's machine that is gone, in traffic and without.
  void set_patience(Duration patience);

  [[nodiscard]] std::string remote_address() const { return remote_; }
  [[nodiscard]] std::string local_address() const { return local_; }

 private:
  void look_at(std::string_view input);
  void read_secured(std::string_view bytes);
  void send_secured();
  void tls_failed();
  void write_raw(std::string_view bytes);
  Rest hand_over(std::string_view& input);
  void keep(std::string_view rest, std::string_view input);
  void hold_back(std::string_view rest);
  void recount();
  void let_go();
  void wait_input();
  void read_input();
  void wait_output();
  void send_output();
  void fail(const boost::system::error_code& error);
  void fail_later(const boost::system::error_code& error);
  void write_failed(const boost::system::error_code& error);

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<TlsStream> tls_;
  OnInput on_input_;
  OnClosed on_closed_;
  std::string remote_, local_;
  std::function<void(const std::exception& fault)> on_fault_;
  std::function<void()> on_drained_;
  std::string input_;   ///< a frame's beginning, or what is held back
  std::string output_;  ///< what the kernel did not take
  std::size_t output_sent_ = 0;
  std::shared_ptr<FrameMemory> memory_;    ///< null: nobody counts
  std::size_t counted_ = 0;                ///< there
  boost::asio::steady_timer frame_timer_;  ///< runs while a frame's beginning lies here
  bool waiting_output_ = false;
  bool frame_begun_ = false;               ///< input_ is a frame's beginning
  bool turn_comes_ = false;                ///< input_ is looked at then, and input is waited for after that
  bool reading_ = false;                   ///< input is waited for
  bool deaf_ = false;                      ///< the peer takes nothing more
  boost::system::error_code write_error_;  ///< how the connection broke, when writing showed it
  Duration patience_{0};
  Duration frame_limit_ = frame_limit;
  bool closing_ = false;
  bool closed_ = false;
};

}  // namespace torchup
