#include "rendezvous/net/ops/tls_bridge.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

namespace torchup {
namespace {

namespace asio = boost::asio;
using Descriptor = asio::posix::stream_descriptor;
using boost::system::error_code;

constexpr std::size_t ahead_max = std::size_t{64} << 10;
constexpr auto farewell_limit = std::chrono::seconds{2};

class TlsBridge final : public std::enable_shared_from_this<TlsBridge> {
 public:
  TlsBridge(asio::io_context& loop, UniqueFd network, std::unique_ptr<TlsStream> tls, UniqueFd local, std::string first)
      : network_{loop}, local_{loop}, farewell_{loop}, tls_{std::move(tls)}, to_local_{std::move(first)} {
    error_code ignored;
    for (auto [side, fd] : {std::pair{&network_, &network}, std::pair{&local_, &local}}) {
      side->descriptor.assign(fd->release(), ignored);
      side->descriptor.non_blocking(true, ignored);
    }
  }

  void turn() {
    if (over_) return;
    take_from_network();
    give(local_, to_local_);
    if (network_.ended && to_local_.empty()) ::shutdown(local_.descriptor.native_handle(), SHUT_WR);
    take_from_local();
    give(network_, to_network_);
    if (local_.ended && to_network_.empty()) ::shutdown(network_.descriptor.native_handle(), SHUT_WR);
    const bool said_all = local_.ended && to_network_.empty();
    if ((said_all && (network_.ended || local_.deaf)) || network_.deaf) return end();
    wait(network_, Descriptor::wait_read, network_.reads, !network_.ended && to_local_.size() < ahead_max);
    wait(network_, Descriptor::wait_write, network_.writes, !to_network_.empty());
    wait(local_, Descriptor::wait_read, local_.reads, !local_.ended && to_network_.size() < ahead_max);
    wait(local_, Descriptor::wait_write, local_.writes, !to_local_.empty());
  }

 private:
  struct Side {
    explicit Side(asio::io_context& loop) : descriptor{loop} {}
    Descriptor descriptor;
    bool ended = false;                  ///< nothing more comes from there
    bool deaf = false;                   ///< nothing more is taken there
    bool reads = false, writes = false;  ///< it is waited for
  };

  /// False: nothing more now, or at all.
  static bool read(Side& side, std::string& bytes) {
    static thread_local std::array<char, std::size_t{16} << 10> buffer;
    const ssize_t count = ::read(side.descriptor.native_handle(), buffer.data(), buffer.size());
    if (count > 0) {
      bytes.assign(buffer.data(), static_cast<std::size_t>(count));
      return true;
    }
    side.ended = count == 0 || (errno != EAGAIN && errno != EINTR);
    return false;
  }

  static void give(Side& side, std::string& bytes) {
    std::size_t given = 0;
    while (given < bytes.size() && !side.deaf) {
      const ssize_t count =
          ::send(side.descriptor.native_handle(), bytes.data() + given, bytes.size() - given, MSG_NOSIGNAL);
      if (count < 0 && (errno == EAGAIN || errno == EINTR)) break;
      if (count < 0) side.deaf = true;
      if (count > 0) given += static_cast<std::size_t>(count);
    }
    bytes.erase(0, side.deaf ? bytes.size() : given);
  }

  void take_from_network() {
    std::string bytes;
    while (!network_.ended && to_local_.size() < ahead_max && read(network_, bytes)) {
      const TlsStream::State state = tls_->receive(bytes, to_local_);
      to_network_ += tls_->to_send();
      network_.ended = state == TlsStream::State::closed || state == TlsStream::State::failed;
    }
  }

  void take_from_local() {
    std::string bytes;
    while (!local_.ended && to_network_.size() < ahead_max && read(local_, bytes)) {
      tls_->send(bytes);
      to_network_ += tls_->to_send();
    }
    if (!local_.ended || farewell_begun_) return;
    farewell_begun_ = true;
    tls_->close();
    to_network_ += tls_->to_send();
    farewell_.expires_after(farewell_limit);
    farewell_.async_wait([weak = weak_from_this()](const error_code& error) {
      const auto self = weak.lock();
      if (!error && self) self->end();
    });
  }

  void wait(Side& side, Descriptor::wait_type what, bool& waited, bool wanted) {
    if (!wanted || std::exchange(waited, true)) return;
    side.descriptor.async_wait(what, [self = shared_from_this(), &waited](const error_code& error) {
      waited = false;
      if (!error) self->turn();
    });
  }

  void end() {
    over_ = true;
    error_code ignored;
    network_.descriptor.close(ignored);
    local_.descriptor.close(ignored);
    farewell_.cancel();
  }

  Side network_, local_;
  asio::steady_timer farewell_;
  bool farewell_begun_ = false;
  std::unique_ptr<TlsStream> tls_;
  std::string to_local_, to_network_;
  bool over_ = false;
};

}  // namespace

Result<UniqueFd> bridge_tls(asio::io_context& loop, UniqueFd network, std::unique_ptr<TlsStream> tls,
                            std::string first) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return system_error("no socket for https");
  }
  UniqueFd ours{ends[0]}, theirs{ends[1]};
  std::make_shared<TlsBridge>(loop, std::move(network), std::move(tls), std::move(ours), std::move(first))->turn();
  return theirs;
}

}  // namespace torchup
