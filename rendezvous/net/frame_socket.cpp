#include "rendezvous/net/frame_socket.hpp"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

namespace torchup {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

namespace {

/// Numeric, without port; an IPv4 address also where the socket is an IPv6 one.
std::string text_of(const tcp::endpoint& endpoint) {
  auto address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  }
  return address.to_string();
}

}  // namespace

FrameSocket::FrameSocket(tcp::socket socket) : socket_{std::move(socket)} {
  error_code ignored;
  if (const auto endpoint = socket_.remote_endpoint(ignored); !ignored) remote_ = text_of(endpoint);
  if (const auto endpoint = socket_.local_endpoint(ignored); !ignored) local_ = text_of(endpoint);
  socket_.non_blocking(true, ignored);
  socket_.set_option(tcp::no_delay{true}, ignored);
  set_patience(std::chrono::seconds{10});
}

void FrameSocket::set_patience(Duration patience) {
  if (patience == patience_) return;
  patience_ = patience;
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(patience).count();
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket_.native_handle(), level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(std::max<long>(1, milliseconds / 2000)));
  set(IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(std::max<long>(1, milliseconds / 6000)));
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::max<long>(1000, milliseconds)));
}

void FrameSocket::start(OnInput on_input, OnClosed on_closed) {
  on_input_ = std::move(on_input);
  on_closed_ = std::move(on_closed);
  wait_input();
}

void FrameSocket::wait_input() {
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code& error) {
    if (self->closed_) return;
    if (error) return self->fail(error);
    self->read_input();
  });
}

void FrameSocket::read_input() {
  static thread_local std::array<char, 64 << 10> buffer;
  error_code error;
  const std::size_t count = socket_.read_some(asio::buffer(buffer), error);
  if (error == asio::error::would_block) return wait_input();
  if (error) return fail(error == asio::error::eof ? error_code{} : error);

  const auto self = shared_from_this();  // a callback may let go of us
  std::string_view input{buffer.data(), count};
  if (!input_.empty()) input = input_.append(input);
  if (!closing_) {
    const OnInput on_input = on_input_;  // it may end us, and with us itself
    const bool more = on_input(input);
    if (closed_) return;
    if (!more && !closing_) return;
  }
  input_ = closing_ ? std::string{} : std::string{input};
  wait_input();
}

void FrameSocket::write(std::string_view bytes) {
  if (closed_ || closing_) return;
  if (output_.size() + bytes.size() > unsent_bytes_max) {
    return fail_later(asio::error::no_buffer_space);
  }
  if (output_.empty() && !waiting_output_) {
    error_code error;
    const std::size_t sent = socket_.write_some(asio::buffer(bytes), error);
    if (error && error != asio::error::would_block) return fail_later(error);
    bytes.remove_prefix(error ? 0 : sent);
    if (bytes.empty()) return;
  }
  output_ += bytes;
  if (!waiting_output_) send_output();
}

/// Never from within write: whoever writes does not expect its own end.
void FrameSocket::fail_later(const error_code& error) {
  asio::post(socket_.get_executor(), [self = shared_from_this(), error] { self->fail(error); });
}

void FrameSocket::send_output() {
  while (!output_.empty()) {
    error_code error;
    const std::size_t sent = socket_.write_some(asio::buffer(output_), error);
    if (error == asio::error::would_block) return wait_output();
    if (error) return fail_later(error);
    output_.erase(0, sent);
  }
  output_ = std::string{};
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
  });
}

void FrameSocket::close_after_writes() {
  if (closed_ || std::exchange(closing_, true)) return;
  if (!waiting_output_) send_output();
  // Input is read on and thrown away: closing over unread input would be a reset, which takes our last words along.
}

void FrameSocket::close() {
  if (std::exchange(closed_, true)) return;
  error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  socket_.close(ignored);
  on_input_ = {};
  on_closed_ = {};
}

void FrameSocket::fail(const error_code& error) {
  if (closed_) return;
  const OnClosed on_closed = std::exchange(on_closed_, {});
  close();
  if (on_closed) on_closed(error);
}

}  // namespace torchup
