#include "rendezvous/net/io/frame_socket.hpp"

#include <array>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "rendezvous/net/io/address.hpp"
#include "rendezvous/net/io/silence_limit.hpp"

namespace torchup {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::size_t read_bytes_max = std::size_t{16} << 10;  // at once

}  // namespace

FrameSocket::FrameSocket(tcp::socket socket)
    : socket_{std::move(socket)}, remote_{peer_address(socket_.native_handle())},
      local_{own_address(socket_.native_handle())}, frame_timer_{socket_.get_executor()} {
  error_code ignored;
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay{true}, ignored);
  set_patience(std::chrono::seconds{10});
}

void FrameSocket::set_patience(Duration patience) {
  if (patience == patience_) return;
  patience_ = patience;
  limit_silence(socket_.native_handle(), patience);
}

void FrameSocket::start(OnInput on_input, OnClosed on_closed) {
  on_input_ = std::move(on_input);
  on_closed_ = std::move(on_closed);
  wait_input();
}

void FrameSocket::poll() {
  const auto self = shared_from_this();
  if (turn_comes_) return look_at(input_);
  if (reading_) read_input();
}

/// Of what is held back first: a poll may come in between.
void FrameSocket::wait_input() {
  if (reading_ || turn_comes_) return;
  reading_ = true;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    self->reading_ = false;
    if (self->closed_ || self->turn_comes_) return;
    if (error) return self->fail(error);
    self->read_input();
  });
}

void FrameSocket::read_input() {
  static thread_local std::array<char, read_bytes_max> buffer;
  error_code error;
  const std::size_t count = socket_.read_some(asio::buffer(buffer), error);
  if (error == asio::error::would_block) return wait_input();
  if (error) return fail(error == asio::error::eof ? write_error_ : error);
  if (tls_) return read_secured({buffer.data(), count});

  const bool begun = !input_.empty();
  look_at(begun ? std::string_view{input_.append(buffer.data(), count)} : std::string_view{buffer.data(), count});
}

// ---- TLS

void FrameSocket::secure(std::unique_ptr<TlsStream> tls) {
  tls_ = std::move(tls);
  send_secured();
}

void FrameSocket::read_secured(std::string_view bytes) {
  std::string plain;
  const TlsStream::State state = tls_->receive(bytes, plain);
  if (state == TlsStream::State::failed) return tls_failed();
  send_secured();
  if (closed_) return;
  if (plain.empty()) return wait_input();
  if (input_.empty()) return look_at(plain);
  input_ += plain;
  look_at(input_);
}

void FrameSocket::send_secured() {
  const std::string bytes = tls_->to_send();
  if (!bytes.empty()) write_raw(bytes);
}

/// What the peer is told, an alert, goes when the owner closes.
void FrameSocket::tls_failed() {
  frame_timer_.cancel();
  const auto self = shared_from_this();
  const OnClosed on_closed = std::exchange(on_closed_, {});
  if (on_closed) on_closed(make_error_code(boost::system::errc::protocol_error));
}

FrameSocket::Parts FrameSocket::release() {
  Parts parts;
  error_code error;
  const int socket = socket_.release(error);
  if (!error) parts.socket.reset(socket);
  parts.tls = std::move(tls_);
  closed_ = true;
  frame_timer_.cancel();
  let_go();
  return parts;
}

/// `whole` is input_, or is read into it where it is to stay.
void FrameSocket::look_at(std::string_view whole) {
  const auto self = shared_from_this();  // a callback may let go of us
  std::string_view rest = whole;
  Rest what = Rest::more;
  if (!closing_) {
    const bool secured = tls_ != nullptr;
    what = hand_over(rest);
    if (closed_) return;
    if (tls_ && !secured) {
      const std::string first{rest};
      keep({}, whole);
      return read_secured(first);
    }
    if (what == Rest::none && !closing_) return;
  }
  if (closing_) {
    keep({}, whole);
  } else if (what == Rest::turn && !rest.empty()) {
    hold_back(rest);
  } else {
    keep(rest, whole);
  }
  recount();
  wait_input();
}

/// As `on_input`, with an end for faults.
FrameSocket::Rest FrameSocket::hand_over(std::string_view& input) {
  const OnInput on_input = on_input_;  // it may end us, and with us itself
  const auto on_fault = on_fault_;
  try {
    return on_input(input);
  } catch (const std::exception& fault) {
    if (!on_fault) throw;
    on_fault(fault);
    if (!closed_) fail(asio::error::fault);
    return Rest::none;
  }
}

/// Keeps `rest`, the end of `whole`, for the next time. A frame that comes byte by byte is not copied for each.
void FrameSocket::keep(std::string_view rest, std::string_view whole) {
  const bool same_frame = std::exchange(frame_begun_, !rest.empty()) && rest.size() == whole.size();
  if (same_frame) return;
  if (rest.size() != input_.size()) std::string{rest}.swap(input_);  // anything else would keep the room that it had
  if (rest.empty()) {
    frame_timer_.cancel();
    return;
  }
  frame_timer_.expires_after(frame_limit_);
  frame_timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    if (!error && self) self->fail(asio::error::timed_out);
  });
}

/// It waits for us, not for its peer: no time runs for it, and nothing more is read before it.
void FrameSocket::hold_back(std::string_view rest) {
  frame_begun_ = false;
  frame_timer_.cancel();
  std::string{rest}.swap(input_);
  if (std::exchange(turn_comes_, true)) return;
  asio::post(socket_.get_executor(), [self = shared_from_this()] {
    self->turn_comes_ = false;
    if (!self->closed_) self->look_at(self->input_);
  });
}

void FrameSocket::recount() {
  if (!memory_) return;
  const std::size_t held = closed_ ? 0 : input_.size() + output_.size();
  memory_->bytes += held - std::exchange(counted_, held);
  if (memory_->bytes > memory_->bytes_max) memory_->exceeded();
}

void FrameSocket::write(std::string_view bytes) {
  if (closed_ || closing_ || deaf_) return;
  if (unsent_bytes() + bytes.size() > unsent_bytes_max) {
    return fail_later(asio::error::no_buffer_space);
  }
  if (!tls_) return write_raw(bytes);
  tls_->send(bytes);
  send_secured();
}

void FrameSocket::write_raw(std::string_view bytes) {
  if (closed_ || closing_ || deaf_) return;
  if (output_.empty() && !waiting_output_) {
    error_code error;
    const std::size_t sent = socket_.write_some(asio::buffer(bytes), error);
    if (error && error != asio::error::would_block) return write_failed(error);
    bytes.remove_prefix(error ? 0 : sent);
    if (bytes.empty()) return;
  }
  if (output_sent_ > output_.size() / 2) {  // or a peer that is always a little late would make it grow
    std::string{output_, output_sent_}.swap(output_);
    output_sent_ = 0;
  }
  output_ += bytes;
  if (!waiting_output_) send_output();
  recount();
}

/// Never from within write: whoever writes does not expect its own end.
void FrameSocket::fail_later(const error_code& error) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), error] { self->fail(error); });
}

/// What the peer said before still lies to be read, and may be the last word that matters; behind it reading shows an
/// end of file, whatever happened. A broken pipe is how writing shows an end of file; anything else broke the
/// connection.
void FrameSocket::write_failed(const error_code& error) {
  deaf_ = true;
  std::string{}.swap(output_);
  output_sent_ = 0;
  recount();
  if (error != asio::error::broken_pipe) write_error_ = error;
  asio::post(socket_.get_executor(), [self = shared_from_this(), error] {
    if (!self->reading_ && !self->turn_comes_) self->fail(error);
  });
}

void FrameSocket::send_output() {
  while (output_sent_ < output_.size()) {
    error_code error;
    const std::size_t sent = socket_.write_some(asio::buffer(output_) + output_sent_, error);
    if (error == asio::error::would_block) return wait_output();
    if (error) return write_failed(error);
    output_sent_ += sent;
  }
  std::string{}.swap(output_);
  output_sent_ = 0;
  recount();
  error_code ignored;
  if (closing_) socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void FrameSocket::wait_output() {
  waiting_output_ = true;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code& error) {
    self->waiting_output_ = false;
    if (self->closed_) return;
    if (error) return self->fail(error);
    self->send_output();
    if (self->output_.empty() && self->on_drained_) std::function{self->on_drained_}();
  });
}

void FrameSocket::close_after_writes() {
  if (closed_ || closing_) return;
  if (tls_) {
    tls_->close();
    send_secured();
  }
  closing_ = true;
  if (!waiting_output_) send_output();
  // Input is read on and thrown away: closing over unread input would be a reset, which takes our last words along.
}

void FrameSocket::close() {
  if (closed_) return;
  if (tls_) {
    tls_->close();
    send_secured();
  }
  closed_ = true;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  socket_.close(ignored);
  frame_timer_.cancel();
  let_go();
}

void FrameSocket::reset() {
  if (std::exchange(closed_, true)) return;
  error_code ignored;
  socket_.set_option(asio::socket_base::linger{true, 0}, ignored);
  socket_.close(ignored);
  frame_timer_.cancel();
  let_go();
}

void FrameSocket::let_go() {
  recount();
  on_input_ = {};
  on_closed_ = {};
  on_fault_ = {};
  on_drained_ = {};
}

void FrameSocket::fail(const error_code& error) {
  if (closed_) return;
  const OnClosed on_closed = std::exchange(on_closed_, {});
  error ? reset() : close();
  if (on_closed) on_closed(error);
}

}  // namespace torchup
