// One class behind its pointer, a little longer than 400 lines: turns, limits and replies share its members.
#include "rendezvous/net/store/store_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "rendezvous/net/io/address.hpp"
#include "rendezvous/net/io/listen.hpp"
#include "rendezvous/net/store/adaptive_spin.hpp"
#include "rendezvous/net/store/random_words.hpp"
#include "rendezvous/net/store/store_connections.hpp"
#include "rendezvous/net/store/store_replies.hpp"
#include "rendezvous/net/store/store_requests.hpp"

namespace torchup {
namespace {

namespace asio = boost::asio;

constexpr int events_per_wait = 512;
constexpr std::uint64_t listener_tag = std::uint64_t{1} << 63;

}  // namespace

class StoreServer::Impl {
 public:
  Impl(asio::io_context& loop, StoreServerOptions options)
      : options_{std::move(options)}, loop_{loop}, readiness_{loop}, clock_{loop}, rest_{loop},
        connections_{options_.connections, options_.other_language != nullptr, open_set(), options_.log,
                     [this](StoreSession& session) { closing(session); }},
        replies_{connections_, options_.connections.reply_bytes_max, options_.log, [this] { flush_later(); }},
        strangers_{options_.strangers ? options_.strangers
                                      : std::make_shared<StrangerList>(connections_.unproven_max())},
        store_{options_.limits, random_store_identity(), replies_, random_hash_secret()}, requests_{
                                                                                              options_, connections_,
                                                                                              replies_, store_, [this] {
                                                                                                go_on_later();
                                                                                              }} {}

  Result<Port> listen() {
    if (!readiness_.is_open()) return system_error(no_set_, "a set of connections to wait for");
    auto listeners = options_.listener ? listen_with(std::move(options_.listener), options_.port,
                                                     options_.connections.silent_peer_max)
                                       : listen_on(options_.bind, options_.port, options_.connections.silent_peer_max);
    if (!listeners) return listeners.error();
    listeners_ = std::move(*listeners);
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!watch_listeners()) return system_error(errno, "epoll_ctl");
    wait_for_readiness();
    return listeners_.port;
  }

  void stop_accepting(std::function<void()> done) {
    for (const UniqueFd& listener : listeners_.sockets) connections_.unwatch(listener.get());
    listeners_.sockets.clear();
    drained_ = std::move(done);
    tell_when_drained();
  }

  const std::string& address() const { return listeners_.address; }

  void watch(std::string_view prefix, StoreWatcher& watcher) { requests_.watch(prefix, watcher); }
  void apply(ClientId client, Request& request) { requests_.apply_taken(client, request); }
  void refuse(ClientId client, std::string reason) { replies_.close(client, std::move(reason)); }

  std::string local_address(ClientId client) const {
    const StoreSession& session = connections_.at(client.value());
    return session.closed ? std::string{} : torchup::own_address(session.socket.get());
  }
  Store& store() { return store_; }

  std::optional<ClientId> join(StoreSink& sink, std::string from) {
    std::optional<ClientId> joined;
    in_own_turn([&] {
      if (const StoreSession* const session = connections_.add(sink, std::move(from)))
        joined = ClientId{session->index};
    });
    return joined;
  }
  void hear(ClientId client, std::string_view bytes) {
    in_own_turn([&] {
      if (StoreSession* const session = channel(client)) requests_.heard(*session, bytes);
    });
  }
  void take_again(ClientId client) {
    in_own_turn([&] {
      if (StoreSession* const session = channel(client)) requests_.send_replies(*session);
    });
  }
  void leave(ClientId client) {
    in_own_turn([&] {
      StoreSession* const session = channel(client);
      if (!session) return;
      session->sink = nullptr;
      connections_.close(*session);
    });
  }

  StoreServerStatus status() const {
    StoreServerStatus status = status_;
    status.connections = connections_.count();
    status.keys = store_.key_count();
    status.queues = store_.queue_count();
    status.bytes = store_.byte_count();
    status.waiting = store_.waiting_count();
    status.arriving_bytes = connections_.arriving_bytes();
    status.unread_bytes = connections_.unread_bytes();
    status.refused = connections_.refused();
    status.requests = requests_.served();
    status.requests_of = requests_.served_of();
    status.batches = replies_.batches();
    return status;
  }

 private:
  /// Null: it is no client without a socket, or not any more.
  [[nodiscard]] StoreSession* channel(ClientId client) const {
    StoreSession* const session = connections_.find(client.value());
    return session && !session->closed && session->sink ? session : nullptr;
  }
  template <class Work>
  void in_own_turn(const Work& work) {
    in_turn_ = true;
    connections_.look_at_clock();
    requests_.begin_turn(connections_.now() + store_turn_max);
    work();
    settle_turn();
    in_turn_ = false;
  }

  // Readiness. The loop waits for one descriptor; what is ready behind it is handled here, turn by turn.

  /// -1: no_set_ says why.
  int open_set() {
    UniqueFd set{::epoll_create1(EPOLL_CLOEXEC)};
    no_set_ = set ? 0 : errno;
    boost::system::error_code error;
    if (set) readiness_.assign(set.get(), error);
    if (error) no_set_ = error.value();
    return no_set_ == 0 ? set.release() : -1;
  }

  void wait_for_readiness() {
    readiness_.async_wait(asio::posix::stream_descriptor::wait_read,
                          [this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
                            if (!error && !alive.expired()) take_turns();
                          });
  }

  /// Between two turns the loop's other work gets its own.
  void take_turns() {
    if (turn()) return wait_for_readiness();
    asio::post(loop_, [this, alive = std::weak_ptr{alive_}] {
      if (!alive.expired()) take_turns();
    });
  }

  /// False when it ended before its work did.
  bool turn() {
    in_turn_ = true;
    bool awake = true;
    connections_.look_at_clock();
    const auto end = connections_.now() + store_turn_max;
    for (requests_.begin_turn(end); awake && connections_.now() < end;) {
      if (ready_.empty() && !look_who_is_ready()) {
        awake = alone_ && serve_awake(end);
      } else {
        ready_ = handle(ready_, end);
      }
    }
    in_turn_ = false;
    return !awake;
  }

  bool look_who_is_ready() {
    const int count = ::epoll_wait(readiness_.native_handle(), events_.data(), events_per_wait, 0);
    alone_ = alone_ && count >= 0;
    if (count <= 0) return false;
    const std::uint64_t only = count == 1 ? events_[0].data.u64 : listener_tag;
    alone_ = only == last_ && only != listener_tag;
    last_ = only;
    ready_ = {events_.data(), static_cast<std::size_t>(count)};
    return true;
  }

  /// Those for whom a turn had no time get their own, with the loop's other work in between.
  void go_on_later() {
    asio::post(loop_, [this, alive = std::weak_ptr{alive_}] {
      if (alive.expired()) return;
      in_turn_ = true;
      connections_.look_at_clock();
      requests_.begin_turn(connections_.now() + store_turn_max);
      requests_.serve_paused();
      settle_turn();
      in_turn_ = false;
    });
  }

  /// Polls for the one client that has had our time to itself, instead of sleeping; many keep us awake anyway. Its
  /// socket is asked directly, which saves a call and finds the request before its sender has gone to sleep; everybody
  /// else is looked after often enough. False when it did not pay.
  bool serve_awake(TimePoint end) {
    constexpr unsigned looks_at_others = 16;
    while (connections_.now() < end) {
      StoreSession* const only = connections_.find(last_);
      if (!only || only->interest != EPOLLIN) {
        alone_ = false;
        return true;
      }
      unsigned polls = 0;
      bool others = false;
      const auto poll = [&] {
        if (++polls % looks_at_others != 0) return requests_.receive(*only);
        epoll_event event;
        others = ::epoll_wait(readiness_.native_handle(), &event, 1, 0) == 1;
        if (others) handle({&event, 1}, end);
        return others;
      };
      if (!spin_.run(poll)) return false;
      if (others) return true;
      connections_.look_at_clock();
      settle_turn();
    }
    return true;
  }

  /// Returns those for whom there was no time until `end`: some requests take as long as a hundred others. The first is
  /// always served.
  std::span<const epoll_event> handle(std::span<const epoll_event> events, TimePoint end) {
    connections_.look_at_clock();
    // Newcomers first: a full backlog makes the kernel drop connections, and their clients try again after a second.
    bool storm = false;
    for (const auto& event : events)
      if (event.data.u64 & listener_tag) storm = accept_all() || storm;
    std::size_t served = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (i + 2 < events.size()) fetch_early(events[i + 2]);
      const auto& event = events[i];
      if (event.data.u64 & listener_tag) continue;
      StoreSession* const session = connections_.find(event.data.u64);
      if (!session || session->closed) continue;
      if (event.events & EPOLLOUT) requests_.send_replies(*session);
      if (!session->closed && (event.events & ~std::uint32_t{EPOLLOUT})) requests_.receive_all(*session, event.events);
      if (replies_.many_unsent()) flush();
      constexpr std::size_t served_between_accepts = 64;
      if (storm && ++served % served_between_accepts == 0) storm = accept_all();
      connections_.look_at_clock();
      if (connections_.now() < end) continue;
      settle_turn();
      return events.subspan(i + 1);
    }
    settle_turn();
    return {};
  }

  /// Among ten thousand sessions the next one's memory is in no cache: ask for it while others are served.
  void fetch_early(const epoll_event& event) const {
    const auto* session = reinterpret_cast<const char*>(connections_.find(event.data.u64));
    if (!session) return;
    for (std::size_t at = 0; at < sizeof(StoreSession); at += 64) __builtin_prefetch(session + at);
  }

  /// What is to be done after sessions have been served: answers leave, who is closed goes, time is kept.
  void settle_turn() {
    flush();
    connections_.release_closed();
    tell_when_drained();
    keep_time();
  }

  // Accepting.

  [[nodiscard]] bool watch_listeners() const {
    for (std::size_t i = 0; i < listeners_.sockets.size(); ++i) {
      if (!connections_.watch(listeners_.sockets[i].get(), listener_tag | i, EPOLLIN, EPOLL_CTL_ADD)) return false;
    }
    return true;
  }

  /// Accepts whoever waits; true when there was anybody.
  bool accept_all() {
    // The next turn takes who is left: whoever comes faster than that must not keep this one from its end.
    constexpr int accepted_max = 1024;
    bool any = false;
    int accepted = 0;
    for (const UniqueFd& listener : listeners_.sockets) {
      while (accepted < accepted_max) {
        sockaddr_storage from{};
        socklen_t size = sizeof from;
        UniqueFd socket{
            ::accept4(listener.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
        if (!socket) {
          if (errno == ECONNABORTED || errno == EINTR) continue;
          if (failed_to_accept(listener.get(), errno)) continue;
          break;
        }
        any = true;
        ++accepted;
        ++status_.accepted;
        if (StoreSession* const session = connections_.add(std::move(socket))) {
          session->stranger =
              StrangerPlace{strangers_, numeric_host(from),
                            [this, index = session->index](const auto& why) { drop_stranger(index, why); }};
        }
      }
    }
    return any;
  }

  /// It goes, unless it has spoken meanwhile. Somebody of another language may be the one for whom it goes, out of our
  /// turn.
  void drop_stranger(std::uint32_t index, const std::string& why) {
    StoreSession& stranger = connections_.at(index);
    requests_.receive_all(stranger, 0);
    if (stranger.handshake.is_linked()) connections_.refuse(stranger, why);
    flush_later();
  }

  /// True when it should be tried again.
  bool failed_to_accept(int listener, int error) {
    const bool no_descriptor = error == EMFILE || error == ENFILE;
    if (!no_descriptor && error != ENOBUFS && error != ENOMEM) return false;
    // The kernel wants a descriptor before it looks whether there is anybody to be given one.
    pollfd backlog{listener, POLLIN, 0};
    if (::poll(&backlog, 1, 0) == 0) return false;
    if (no_descriptor && make_room()) return true;
    if (!no_descriptor || !turn_away(listener)) rest();
    return false;
  }

  /// No descriptor is left for the newcomer: a stranger gives way to it, whatever language it has begun to speak.
  /// False: there is nobody.
  bool make_room() {
    return strangers_->give_descriptor() || (options_.gives_descriptor && options_.gives_descriptor());
  }

  /// The descriptor that is kept in reserve lets us take the newcomer out of the backlog and close it, instead of being
  /// woken for it for ever. False: there is not even that.
  bool turn_away(int listener) {
    reserve_.reset();
    UniqueFd socket{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)};
    const bool accepted = static_cast<bool>(socket);
    if (accepted) {
      say_busy(socket.get());
      connections_.refuse(socket.get(), "this process has no descriptor left");
    }
    socket.reset();
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    return accepted;
  }

  /// To who has said already what it speaks: an agent comes again, and tells people why.
  void say_busy(int socket) const {
    unsigned char first = 0;
    if (!options_.busy_text || ::recv(socket, &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1) return;
    const std::string text = options_.busy_text(first);
    if (text.empty()) return;
    ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // What lies unread would make the end a reset, which takes the words along.
    std::array<char, 4096> unread;
    while (::recv(socket, unread.data(), unread.size(), MSG_DONTWAIT) == static_cast<ssize_t>(unread.size())) {
    }
  }

  /// The system has nothing left for newcomers. To be told of them again and again would cost a whole processor.
  void rest() {
    for (const UniqueFd& listener : listeners_.sockets) connections_.unwatch(listener.get());
    constexpr auto pause = std::chrono::milliseconds{100};
    rest_.expires_after(pause);
    rest_.async_wait([this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
      if (error || alive.expired()) return;
      if (!watch_listeners()) rest();
    });
  }

  // Answering.

  void flush_later() {
    if (in_turn_) return;  // it is the holder of the store who woke somebody
    asio::post(loop_, [this, alive = std::weak_ptr{alive_}] {
      if (alive.expired()) return;
      connections_.look_at_clock();
      settle_turn();
    });
  }

  /// Sends what the engine has answered since the last time.
  void flush() { requests_.flush(); }

  // Ending.

  void closing(StoreSession& session) {
    store_.disconnect(ClientId{session.index});
    requests_.gone(ClientId{session.index});
  }

  void tell_when_drained() {
    if (drained_ && connections_.count() == 0) asio::post(loop_, std::exchange(drained_, nullptr));
  }

  /// Ticks only while somebody has a deadline.
  void keep_time() {
    if (ticking_ || !connections_.anybody_has_a_deadline()) return;
    ticking_ = true;
    constexpr auto tick = std::chrono::milliseconds{250};
    clock_.expires_after(tick);
    clock_.async_wait([this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
      if (error || alive.expired()) return;
      ticking_ = false;
      connections_.look_at_clock();
      connections_.expire();
      settle_turn();
    });
  }

  StoreServerOptions options_;
  asio::io_context& loop_;
  asio::posix::stream_descriptor readiness_;
  int no_set_ = 0;  ///< the system's reason why there is none
  asio::steady_timer clock_;
  asio::steady_timer rest_;  ///< runs while nobody is accepted for a moment
  StoreConnections connections_;
  StoreReplies replies_;
  std::shared_ptr<StrangerList> strangers_;
  Store store_;
  StoreRequests requests_;
  Listeners listeners_;
  UniqueFd reserve_;  ///< a descriptor to give up when there is none left
  StoreServerStatus status_;
  std::function<void()> drained_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  std::array<epoll_event, events_per_wait> events_;
  std::span<const epoll_event> ready_;  ///< of events_, those who are still to be served
  AdaptiveSpin spin_;
  std::uint64_t last_ = listener_tag;  ///< the session of the last event that came alone
  bool alone_ = false;                 ///< and the one before was of the same
  bool in_turn_ = false;
  bool ticking_ = false;
};

StoreServer::StoreServer(asio::io_context& loop, StoreServerOptions options)
    : impl_{std::make_unique<Impl>(loop, std::move(options))} {}
StoreServer::~StoreServer() = default;

Result<Port> StoreServer::listen() { return impl_->listen(); }
std::string StoreServer::address() const { return impl_->address(); }
void StoreServer::drain(std::function<void()> done) { impl_->stop_accepting(std::move(done)); }
void StoreServer::watch(std::string_view prefix, StoreWatcher& watcher) { impl_->watch(prefix, watcher); }
void StoreServer::apply(ClientId client, Request& request) { impl_->apply(client, request); }
void StoreServer::refuse(ClientId client, std::string reason) { impl_->refuse(client, std::move(reason)); }
std::string StoreServer::local_address(ClientId client) const { return impl_->local_address(client); }
std::optional<ClientId> StoreServer::join(StoreSink& sink, std::string from) {
  return impl_->join(sink, std::move(from));
}
void StoreServer::hear(ClientId client, std::string_view bytes) { impl_->hear(client, bytes); }
void StoreServer::take_again(ClientId client) { impl_->take_again(client); }
void StoreServer::leave(ClientId client) { impl_->leave(client); }
Store& StoreServer::store() { return impl_->store(); }
StoreServerStatus StoreServer::status() const { return impl_->status(); }

}  // namespace torchup
