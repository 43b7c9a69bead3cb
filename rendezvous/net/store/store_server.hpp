#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/store/store.hpp"
#include "rendezvous/core/store/store_status.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/io/silence_limit.hpp"
#include "rendezvous/net/io/stranger_list.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace boost::asio {
class io_context;
}

namespace torchup {

/// One turn serves clients for so long; then the loop's other work gets its own, and who has more to be served waits
/// behind those who have just come. A request is not interrupted, but for a long list of all keys.
inline constexpr Duration store_turn_max = std::chrono::milliseconds{1};
/// LIST_KEYS of more keys waits for a turn's end. One of them is served at a time, in steps.
inline constexpr std::size_t store_short_list = 1024;
/// Requests that a client of whom more have come is served at least in a turn.
inline constexpr unsigned store_slice_requests = 16;

/// What connections may cost. Who meets a limit is closed with one log line that names it; the others are served on.
struct ConnectionLimits {
  /// Clients of the store; also bounded by the descriptors that this process may open, less a reserve, and less a
  /// quarter where the port serves other languages too. Who has not said what it is does not count
  /// (StoreServerOptions::strangers).
  std::size_t connections_max = 20'000;
  std::size_t request_bytes_max = std::size_t{256} << 20;  ///< one request while it arrives
  /// Requests of all connections that are not served yet: 64 of the longest values at once, or two of the longest
  /// requests.
  std::size_t arriving_bytes_max = std::size_t{512} << 20;
  /// Unsent answers of a connection from which on its further requests wait.
  std::size_t reply_pause_bytes = std::size_t{1} << 20;
  /// Unsent answers to which none is added: a request whose answer is still longer closes its connection. The value
  /// that crosses the limit is the last one, so that every value can be read.
  std::size_t reply_bytes_max = std::size_t{64} << 20;
  /// Memory that unsent answers of all connections take up beyond the store's own. Who holds most for the longest time
  /// is closed first.
  std::size_t unread_bytes_max = std::size_t{128} << 20;
  Duration handshake_max = std::chrono::seconds{10};  ///< from accept to the five bytes of VALIDATE
  Duration request_max = std::chrono::seconds{120};   ///< from a request's first byte to its last
  Duration stalled_max = std::chrono::seconds{60};    ///< unsent answers of which the peer reads nothing
  std::size_t large_reply_bytes = std::size_t{8} << 20;
  Duration large_reply_max = std::chrono::seconds{60};  ///< so many unsent bytes or more, however they are read
  Duration silent_peer_max = store_silence_max;  ///< TCP keep-alive and TCP_USER_TIMEOUT: the peer's machine is gone
};

struct StoreServerOptions {
  /// Numeric address to listen on. Empty or "::": every address, IPv4 and IPv6. "localhost": loopback, of both
  /// families.
  std::string bind;
  Port port{0};  ///< 0: any free one
  /// A bound and listening TCP socket instead of `bind`; `port` must be its own or 0.
  UniqueFd listener;
  StoreLimits limits;
  ConnectionLimits connections;
  /// Takes a connection whose first byte is not TCPStore's `00`: moves the socket out and returns true. Nothing has
  /// been read from it. Called on the loop, once, when the first byte is there. Unset or false: closed with one log
  /// line.
  std::function<bool(unsigned char first_byte, UniqueFd& socket)> other_language;
  /// Who at this port has not said who it is, in whatever language it has begun to speak. Null: a list of this store's
  /// own, of three quarters as many as there may be clients.
  std::shared_ptr<StrangerList> strangers;
  /// Closes a connection that was handed over, because no descriptor is left for a newcomer and no stranger has one.
  /// False: there is none. Unset: none is asked for.
  std::function<bool()> gives_descriptor;
  /// What is said to whoever has begun with that byte, and for whom there is no descriptor. Unset: nothing.
  std::function<std::string(unsigned char first_byte)> busy_text;
  /// Whether the store serves a client from that numeric address. Asked once for each, when it has said that it is one.
  /// Unset: from every address.
  std::function<bool(const std::string& address)> admits;
  /// Told of each one whom it does not serve, in place of `log`. Unset: the log is.
  std::function<void(const std::string& address)> refused;
  LogSink log;  ///< rare events only; unset: nobody wants to know
};

class StoreSink;

/// Sees what clients do to keys of interest. Called on the loop; may use the store.
class StoreWatcher {
 public:
  enum class Taken : std::uint8_t {
    no,   ///< it is to be applied
    yes,  ///< it is answered, or none is owed, or the client is refused
    /// Its answer is owed (StoreServer::apply), and comes before any other: a client that asks for more is refused.
    held,
  };
  /// A SET, GET or COMPARE_SET that has not been applied. What is taken may be moved away.
  virtual Taken takes(ClientId client, Request& request) = 0;
  /// A COMPARE_SET has stored what it brought.
  virtual void compared(ClientId client, std::string_view key) = 0;
  /// The connection has ended, of any client.
  virtual void gone(ClientId client) = 0;

 protected:
  ~StoreWatcher() = default;
};

/// Serves PyTorch's TCPStore protocol on one port. Everything happens on the thread that runs `loop`, `store()`
/// included; no peer is ever looked up by name.
///
/// The loop sees one descriptor, an epoll set of our own: sessions cost no coroutine and no handler, only readiness,
/// recv and send; the answers of many leave
/// with one call where the kernel allows it (SendBatch). Destroying the server closes all connections.
class StoreServer {
 public:
  StoreServer(boost::asio::io_context& loop, StoreServerOptions options);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  /// Binds and listens; clients are served as soon as the loop runs. Once per server. Returns the real port.
  ///
  /// Errors: the system's (address in use, not available, permission denied) with address and port in the context, or
  /// that there is no descriptor left;
  /// errc::bad_value when `bind` is no numeric address or `listener` has another port.
  [[nodiscard]] Result<Port> listen();

  /// The addresses listened on, "[::]:29500" first; empty before listen().
  [[nodiscard]] std::string address() const;

  /// Accepts nobody any more; who is connected is served on. `done` is called from the loop when the last one has gone.
  void drain(std::function<void()> done);

  // Clients without a socket of their own, as a store gate brings them. On the loop's thread, outside of the sink's own
  // calls.

  /// One more; `from`: where it is, for people. Nothing: there is no place.
  [[nodiscard]] std::optional<ClientId> join(StoreSink& sink, std::string from);
  /// It says so much.
  void hear(ClientId client, std::string_view bytes);
  /// Its sink takes answers again.
  void take_again(ClientId client);
  /// It has gone; its sink is called no more.
  void leave(ClientId client);

  /// The key space, for the process that holds it. On the loop's thread only; what it wakes is sent when control
  /// returns to the loop.
  [[nodiscard]] Store& store();
  [[nodiscard]] StoreServerStatus status() const;

  /// From now on `watcher` sees what happens to keys that begin with `prefix`, to the end of the loop's run.
  void watch(std::string_view prefix, StoreWatcher& watcher);
  /// A request that the watcher took, of a client that is still there.
  void apply(ClientId client, Request& request);
  /// From within StoreWatcher::takes: closes that client's connection, with the reason in the log.
  void refuse(ClientId client, std::string reason);
  /// Our numeric address on that client's connection.
  [[nodiscard]] std::string local_address(ClientId client) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace torchup
