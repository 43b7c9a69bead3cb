#include "rendezvous/net/store_server.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <list>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "rendezvous/core/store_codec.hpp"
#include "rendezvous/net/adaptive_spin.hpp"
#include "rendezvous/net/listen.hpp"
#include "rendezvous/net/reply_queue.hpp"

namespace torchup {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

constexpr std::size_t scratch_bytes = 64 * 1024;
constexpr int events_per_wait = 512;
constexpr auto turn_max = std::chrono::milliseconds{1};  ///< after that the loop's other work gets its turn
constexpr std::size_t spare_descriptors = 64;            ///< left to the rest of the process
constexpr std::size_t answers_per_flush = 16;            ///< the kernel's code for sending stays in the cache meanwhile
constexpr std::uint64_t listener_tag = std::uint64_t{1} << 63;

struct Session;

/// Sessions that have something to finish, all within the same time: the oldest are in front.
class DeadlineQueue {
 public:
  using Entry = std::pair<TimePoint, Session*>;
  using Place = std::list<Entry>::iterator;

  explicit DeadlineQueue(Duration limit) : limit_{limit} {}

  void add(Session* session, std::optional<Place>& place, TimePoint now) {
    if (!place) place = entries_.insert(entries_.end(), {now + limit_, session});
  }
  void remove(std::optional<Place>& place) {
    if (place) entries_.erase(*std::exchange(place, std::nullopt));
  }
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] Session* expired(TimePoint now) const {
    return !entries_.empty() && entries_.front().first <= now ? entries_.front().second : nullptr;
  }
  [[nodiscard]] std::string limit_text() const {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(limit_).count()) + " ms";
  }

 private:
  Duration limit_;
  std::list<Entry> entries_;
};

/// One connection. Between its events it holds this and nothing else.
struct Session {
  Session(std::uint32_t session_index, UniqueFd connection, FieldLimits limits)
      : index{session_index}, socket{std::move(connection)}, reader{std::make_unique<RequestReader>(limits)} {}

  std::uint32_t index;
  UniqueFd socket;
  std::uint32_t interest = EPOLLIN;
  /// Until VALIDATE, and while a request is incomplete. Between requests there is none: one reader serves all sessions,
  /// and with ten thousand of them stays in the cache.
  std::unique_ptr<RequestReader> reader;
  ReplyQueue replies;
  bool language_known = false;
  bool has_unsent = false;   ///< stands in the list of those to be flushed
  bool peer_closed = false;  ///< its stream has ended; closed when the answers are out
  bool closed = false;
  std::size_t held_bytes = 0;  ///< of an unfinished request, as counted in the sum of all
  std::optional<DeadlineQueue::Place> handshake, request, stalled;
};

Value random_identity() {
  std::array<std::uint32_t, 4> words{};
  if (::getrandom(words.data(), sizeof words, 0) != sizeof words)
    throw std::system_error{errno, std::generic_category(), "getrandom"};
  std::string text;
  for (const std::uint32_t word : words) put_nonce(text, word);
  return Value{text};
}

std::size_t descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur > 2 * spare_descriptors ? limit.rlim_cur - spare_descriptors : spare_descriptors;
}

}  // namespace

class StoreServer::Impl : StoreOutlet {
 public:
  Impl(asio::io_context& loop, StoreServerOptions options)
      : options_{std::move(options)}, loop_{loop}, readiness_{loop, ::epoll_create1(EPOLL_CLOEXEC)}, clock_{loop},
        store_{options_.limits, random_identity(), *this},
        connections_max_{std::min(options_.connections.connections_max, descriptor_limit())},
        handshakes_{options_.connections.handshake_max}, requests_{options_.connections.request_max},
        stalled_{options_.connections.stalled_max}, scratch_(scratch_bytes) {
    fields_.message_bytes_max = options_.connections.request_bytes_max;
    idle_reader_ = std::make_unique<RequestReader>(fields_, true);
    if (readiness_.native_handle() < 0) throw std::runtime_error{"epoll_create1 failed"};
  }

  Result<Port> listen() {
    auto listeners = options_.listener ? listen_with(std::move(options_.listener), options_.port,
                                                     options_.connections.silent_peer_max)
                                       : listen_on(options_.bind, options_.port, options_.connections.silent_peer_max);
    if (!listeners) return listeners.error();
    listeners_ = std::move(*listeners);
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    for (std::size_t i = 0; i < listeners_.sockets.size(); ++i)
      watch(listeners_.sockets[i].get(), listener_tag | i, EPOLLIN);
    wait_for_readiness();
    return listeners_.port;
  }

  void stop_accepting(std::function<void()> done) {
    listeners_.sockets.clear();
    drained_ = std::move(done);
    if (session_count_ == 0) asio::post(loop_, std::exchange(drained_, nullptr));
  }

  const std::string& address() const { return listeners_.address; }

  void watch(std::string_view prefix, StoreWatcher& watcher) {
    watched_prefix_ = prefix;
    watcher_ = &watcher;
  }

  void apply(ClientId client, Request& request) {
    apply_seen(client, request);
    if (refusal_) refuse(*sessions_.at(client.value()), *std::exchange(refusal_, std::nullopt));
  }

  std::string local_address(ClientId client) const {
    const Session& session = *sessions_.at(client.value());
    return session.closed ? std::string{} : torchup::own_address(session.socket.get());
  }
  Store& store() { return store_; }

  StoreServerStatus status() const {
    StoreServerStatus status = status_;
    status.connections = session_count_;
    status.keys = store_.key_count();
    status.queues = store_.queue_count();
    status.bytes = store_.byte_count();
    status.waiting = store_.waiting_count();
    status.arriving_bytes = arriving_bytes_;
    return status;
  }

 private:
  // Readiness. The loop waits for one descriptor; what is ready behind it is handled here, turn by turn.

  void watch(int socket, std::uint64_t tag, std::uint32_t events, int operation = EPOLL_CTL_ADD) {
    epoll_event event{};
    event.events = events & EPOLLIN ? events | EPOLLRDHUP : events;
    event.data.u64 = tag;
    if (::epoll_ctl(readiness_.native_handle(), operation, socket, &event) != 0)
      throw std::runtime_error{"epoll_ctl failed: " + std::to_string(errno)};
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
    std::array<epoll_event, events_per_wait> events;
    bool awake = true;
    now_ = Clock::now();
    for (const auto end = now_ + turn_max; awake && now_ < end;) {
      const int count = ::epoll_wait(readiness_.native_handle(), events.data(), events_per_wait, 0);
      if (count > 0) {
        const std::uint64_t only = count == 1 ? events[0].data.u64 : listener_tag;
        alone_ = only == last_ && only != listener_tag;
        last_ = only;
        handle({events.data(), static_cast<std::size_t>(count)});
      } else {
        awake = count == 0 && alone_ && serve_awake(end);
      }
    }
    in_turn_ = false;
    return !awake;
  }

  /// Polls for the one client that has had our time to itself, instead of sleeping; many keep us awake anyway. Its
  /// socket is asked directly, which saves a call and finds the request before its sender has gone to sleep; everybody
  /// else is looked after often enough. False when it did not pay.
  bool serve_awake(TimePoint end) {
    constexpr unsigned looks_at_others = 16;
    while (now_ < end) {
      Session* const only = sessions_[static_cast<std::size_t>(last_)].get();
      if (!only || only->interest != EPOLLIN) {
        alone_ = false;
        return true;
      }
      unsigned polls = 0;
      bool others = false;
      const auto poll = [&] {
        if (++polls % looks_at_others != 0) return receive(*only);
        epoll_event event;
        others = ::epoll_wait(readiness_.native_handle(), &event, 1, 0) == 1;
        if (others) handle({&event, 1});
        return others;
      };
      if (!spin_.run(poll)) return false;
      if (others) return true;
      now_ = Clock::now();
      flush();
      release_closed();
    }
    return true;
  }

  void handle(std::span<const epoll_event> events) {
    now_ = Clock::now();
    // Newcomers first: a full backlog makes the kernel drop connections, and their clients try again after a second.
    bool storm = false;
    for (const auto& event : events)
      if (event.data.u64 & listener_tag) storm = accept_all() || storm;
    std::size_t served = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      if (i + 2 < events.size()) fetch_early(events[i + 2]);
      const auto& event = events[i];
      if (event.data.u64 & listener_tag) continue;
      Session* session = sessions_[static_cast<std::size_t>(event.data.u64)].get();
      if (session->closed) continue;
      if (event.events & EPOLLOUT) send_replies(*session);
      if (!session->closed && (event.events & ~std::uint32_t{EPOLLOUT})) receive_all(*session, event.events);
      if (unsent_.size() >= answers_per_flush) flush();
      constexpr std::size_t served_between_accepts = 64;
      if (storm && ++served % served_between_accepts == 0) storm = accept_all();
    }
    flush();
    release_closed();
  }

  /// Among ten thousand sessions the next one's memory is in no cache: ask for it while others are served.
  void fetch_early(const epoll_event& event) const {
    if (event.data.u64 & listener_tag) return;
    const auto* session = reinterpret_cast<const char*>(sessions_[static_cast<std::size_t>(event.data.u64)].get());
    for (std::size_t at = 0; at < sizeof(Session); at += 64) __builtin_prefetch(session + at);
  }

  // Accepting.

  /// Accepts whoever waits; true when there was anybody.
  bool accept_all() {
    bool any = false;
    for (const UniqueFd& listener : listeners_.sockets) {
      for (;;) {
        UniqueFd socket{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
        if (!socket) {
          if (errno == ECONNABORTED || errno == EINTR) continue;
          if (errno == EMFILE || errno == ENFILE) refuse_for_descriptors(listener.get());
          break;
        }
        any = true;
        ++status_.accepted;
        if (session_count_ < connections_max_) {
          add_session(std::move(socket));
        } else {
          refuse(socket.get(), "connections_max: " + std::to_string(connections_max_) + " are connected");
        }
      }
    }
    return any;
  }

  /// No descriptor is left for the newcomer. The one kept in reserve lets us take it out of the backlog and close it,
  /// instead of being woken for it for ever.
  void refuse_for_descriptors(int listener) {
    reserve_.reset();
    if (UniqueFd socket{::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)}; socket)
      refuse(socket.get(), "this process has no descriptor left");
    reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }

  void add_session(UniqueFd socket) {
    std::uint32_t index = static_cast<std::uint32_t>(sessions_.size());
    if (free_.empty()) {
      sessions_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    watch(socket.get(), index, EPOLLIN | EPOLLET);
    sessions_[index] = std::make_unique<Session>(index, std::move(socket), fields_);
    ++session_count_;
    handshakes_.add(sessions_[index].get(), sessions_[index]->handshake, now_);
    keep_time();
  }

  // Receiving.

  /// Serves what has come. The kernel tells once for all of it, so nothing may be left: a full piece can have more
  /// behind it, and so can the last one before the end of the stream.
  void receive_all(Session& session, std::uint32_t events) {
    const bool to_the_end = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    constexpr int pieces_max = 16;
    for (int pieces = 0; session.interest & EPOLLIN; ++pieces) {
      if (pieces == pieces_max)  // others' turn; the kernel will tell again
        return watch(session.socket.get(), session.index, session.interest | EPOLLET, EPOLL_CTL_MOD);
      if (!receive(session) || session.closed || (!piece_was_full_ && !to_the_end)) return;
      send_replies(session);  // or they would pile up
      if (session.closed) return;
    }
  }

  /// Serves one piece of what has come; false when nothing has.
  bool receive(Session& session) {
    piece_was_full_ = false;
    if (!session.language_known && !begin(session)) return true;
    RequestReader& reader = session.reader ? *session.reader : *idle_reader_;
    const auto direct = reader.direct_space();
    ssize_t got = 0;
    if (direct.empty()) {
      got = ::recv(session.socket.get(), scratch_.data(), scratch_.size(), 0);
    } else {
      std::array<iovec, 2> pieces{{{direct.data(), direct.size()}, {scratch_.data(), scratch_.size()}}};
      got = ::readv(session.socket.get(), pieces.data(), pieces.size());
    }
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) return false;
      close(session);
      return true;
    }
    if (got == 0) {
      session.peer_closed = true;
      // Answers that are still on their way are owed to a peer that has only finished asking.
      session.replies.empty() ? close(session) : update_interest(session);
      return true;
    }
    const std::size_t count = static_cast<std::size_t>(got), to_value = std::min(count, direct.size());
    piece_was_full_ = count == direct.size() + scratch_.size();
    reader.filled(to_value);
    serve(session, reader, {scratch_.data(), count - to_value});
    if (!session.closed) settle(session, reader);
    return true;
  }

  /// Looks at the first byte of a connection, without taking it. False when the connection is not, or no longer, ours.
  bool begin(Session& session) {
    unsigned char first = 0;
    const ssize_t got = ::recv(session.socket.get(), &first, 1, MSG_PEEK);
    if (got <= 0) {
      if (got == 0 || (errno != EAGAIN && errno != EINTR)) close(session);
      return false;
    }
    session.language_known = true;
    if (first == 0) return true;
    if (options_.other_language) {
      ::epoll_ctl(readiness_.native_handle(), EPOLL_CTL_DEL, session.socket.get(), nullptr);
      if (options_.other_language(first, session.socket)) {
        close(session);
        return false;
      }
    }
    refuse(session, "not a TCPStore client (its first byte is " + std::to_string(first) + ")");
    return false;
  }

  void serve(Session& session, RequestReader& reader, std::string_view input) {
    for (;;) {
      const auto status = reader.read(input, request_);
      if (status == RequestReader::Status::malformed) return refuse(session, reader.error());
      if (status == RequestReader::Status::incomplete) return;
      ++status_.requests;
      apply(session);
      if (refusal_) return refuse(session, *std::exchange(refusal_, std::nullopt));
    }
  }

  void apply(const Session& session) {
    const ClientId client{session.index};
    const bool seen =
        watcher_ &&
        (request_.query == Query::set || request_.query == Query::get || request_.query == Query::compare_set) &&
        request_.key.starts_with(watched_prefix_);
    if (!seen) return store_.apply(client, request_);
    if (!watcher_->takes(client, request_)) apply_seen(client, request_);
  }

  void apply_seen(ClientId client, Request& request) {
    store_.apply(client, request);
    if (request.query == Query::compare_set) watcher_->compared(client, request.key);
  }

  /// Between requests the session gives its reader up. An unfinished one keeps it, and what that costs is counted:
  /// memory, of all together, and time.
  void settle(Session& session, RequestReader& reader) {
    const bool unfinished = reader.in_request();
    if (!unfinished && !session.reader) return;  // the rule: nothing was left over, neither before nor now
    if (!session.reader) {
      session.reader = std::exchange(idle_reader_, std::make_unique<RequestReader>(fields_, true));
    }
    const std::size_t held = unfinished ? reader.held_bytes() : 0;
    arriving_bytes_ = arriving_bytes_ - session.held_bytes + held;
    session.held_bytes = held;
    if (reader.validated()) handshakes_.remove(session.handshake);
    if (unfinished && !session.handshake) {
      requests_.add(&session, session.request, now_);
      keep_time();
    } else {
      requests_.remove(session.request);
    }
    if (!unfinished && reader.validated()) session.reader.reset();
    if (arriving_bytes_ > options_.connections.arriving_bytes_max)
      refuse(session, "arriving_bytes_max: unfinished requests hold " + std::to_string(arriving_bytes_) + " bytes");
  }

  // Answering.

  std::string& buffer(ClientId to) {
    Session& session = *sessions_[to.value()];
    if (!session.has_unsent) {
      session.has_unsent = true;
      unsent_.push_back(to.value());
      // Outside a turn it is the holder of the store who woke somebody.
      if (!in_turn_ && unsent_.size() == 1) flush_later();
    }
    return session.replies.buffer();
  }

  void flush_later() {
    asio::post(loop_, [this, alive = std::weak_ptr{alive_}] {
      if (alive.expired()) return;
      now_ = Clock::now();
      flush();
      release_closed();
    });
  }

  void byte(ClientId to, std::uint8_t value) override { put_byte(buffer(to), value); }
  void number(ClientId to, std::int64_t value) override { put_number(buffer(to), value); }
  void nonce(ClientId to, std::uint32_t value) override { put_nonce(buffer(to), value); }
  void bytes(ClientId to, std::string_view value) override { put_bytes(buffer(to), value); }
  void bytes(ClientId to, const Value& value) override {
    if (value.size() < ReplyQueue::share_min) return put_bytes(buffer(to), value.view());
    put_number(buffer(to), static_cast<std::int64_t>(value.size()));
    sessions_[to.value()]->replies.share(value);
  }
  void close(ClientId, std::string reason) override { refusal_ = std::move(reason); }  // always of who asks just now

  /// Sends what the engine has answered since the last time.
  void flush() {
    for (std::size_t i = 0; i < unsent_.size(); ++i) {
      Session& session = *sessions_[unsent_[i]];
      session.has_unsent = false;
      if (!session.closed) send_replies(session);
    }
    unsent_.clear();
  }

  static ssize_t send_pieces(int socket, std::span<iovec> pieces) {
    if (pieces.size() == 1) return ::send(socket, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL);
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    return ::sendmsg(socket, &message, MSG_NOSIGNAL);
  }

  void send_replies(Session& session) {
    bool progress = false;
    while (!session.replies.empty()) {
      std::array<iovec, 64> pieces;
      const std::size_t count = session.replies.front(pieces);
      const ssize_t sent = send_pieces(session.socket.get(), {pieces.data(), count});
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) break;
        return close(session);
      }
      session.replies.pop(static_cast<std::size_t>(sent));
      progress = true;
    }
    if (session.replies.empty() && session.peer_closed) return close(session);
    if (session.stalled && progress) stalled_.remove(session.stalled);
    if (!session.replies.empty()) {
      stalled_.add(&session, session.stalled, now_);
      keep_time();
    }
    update_interest(session);
  }

  /// Reads while there is room for answers, and waits for room while there are any.
  void update_interest(Session& session) {
    const bool read = !session.peer_closed && session.replies.size() <= options_.connections.reply_bytes_max;
    const std::uint32_t interest =
        (read ? std::uint32_t{EPOLLIN} : 0) | (session.replies.empty() ? 0 : std::uint32_t{EPOLLOUT});
    if (interest == session.interest) return;
    session.interest = interest;
    watch(session.socket.get(), session.index, interest | EPOLLET, EPOLL_CTL_MOD);
  }

  // Ending.

  void refuse(Session& session, const std::string& reason) {
    if (session.closed) return;
    // What was answered before the offence is still sent, as far as it goes.
    if (!session.replies.empty()) {
      std::array<iovec, 64> pieces;
      send_pieces(session.socket.get(), {pieces.data(), session.replies.front(pieces)});
    }
    refuse(session.socket.get(), reason);
    close(session);
  }

  void refuse(int socket, const std::string& reason) {
    ++status_.refused;
    if (!options_.log) return;
    // Refusals at one limit are one message; numbers and bytes behind its name differ.
    std::string kind = "closed: " + reason.substr(0, reason.find_first_of(":("));
    LogLine line{LogLevel::warning, std::move(kind), fmt::format("closed {}: {}", peer_text(socket), reason)};
    options_.log(std::move(line).because_of(peer_address(socket)));
  }

  void close(Session& session) {
    if (session.closed) return;
    session.closed = true;
    session.socket.reset();
    store_.disconnect(ClientId{session.index});
    if (watcher_) watcher_->gone(ClientId{session.index});
    arriving_bytes_ -= session.held_bytes;
    handshakes_.remove(session.handshake);
    requests_.remove(session.request);
    stalled_.remove(session.stalled);
    closed_.push_back(session.index);
  }

  /// Frees those who closed in this turn. Until then their number is not given away and their events are passed over.
  void release_closed() {
    for (const std::uint32_t index : closed_) {
      sessions_[index].reset();
      free_.push_back(index);
      --session_count_;
    }
    closed_.clear();
    if (session_count_ == 0 && drained_) asio::post(loop_, std::exchange(drained_, nullptr));
  }

  // Time. Ticks only while somebody has a deadline.

  void keep_time() {
    if (std::exchange(ticking_, true)) return;
    constexpr auto tick = std::chrono::milliseconds{250};
    clock_.expires_after(tick);
    clock_.async_wait([this, alive = std::weak_ptr{alive_}](const boost::system::error_code& error) {
      if (error || alive.expired()) return;
      ticking_ = false;
      now_ = Clock::now();
      while (Session* session = handshakes_.expired(now_))
        refuse(*session, "handshake_max: no VALIDATE within " + handshakes_.limit_text());
      while (Session* session = requests_.expired(now_))
        refuse(*session, "request_max: a request not complete within " + requests_.limit_text());
      while (Session* session = stalled_.expired(now_))
        refuse(*session, "stalled_max: answers not read for " + stalled_.limit_text());
      release_closed();
      if (!handshakes_.empty() || !requests_.empty() || !stalled_.empty()) keep_time();
    });
  }

  StoreServerOptions options_;
  asio::io_context& loop_;
  asio::posix::stream_descriptor readiness_;
  asio::steady_timer clock_;
  FieldLimits fields_;
  std::unique_ptr<RequestReader> idle_reader_;  ///< between two requests, as most sessions are
  Store store_;
  StoreWatcher* watcher_ = nullptr;
  std::string watched_prefix_;
  Request request_;
  std::optional<std::string> refusal_;
  Listeners listeners_;
  UniqueFd reserve_;  ///< a descriptor to give up when there is none left
  std::size_t connections_max_;
  std::vector<std::unique_ptr<Session>> sessions_;  ///< the index is the engine's ClientId
  std::vector<std::uint32_t> free_, closed_, unsent_;
  std::size_t session_count_ = 0;
  std::size_t arriving_bytes_ = 0;
  DeadlineQueue handshakes_, requests_, stalled_;
  std::vector<char> scratch_;
  StoreServerStatus status_;
  std::function<void()> drained_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
  TimePoint now_ = Clock::now();
  AdaptiveSpin spin_;
  std::uint64_t last_ = listener_tag;  ///< the session of the last event that came alone
  bool alone_ = false;                 ///< and the one before was of the same
  bool in_turn_ = false;
  bool piece_was_full_ = false;  ///< the last one received
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
std::string StoreServer::local_address(ClientId client) const { return impl_->local_address(client); }
Store& StoreServer::store() { return impl_->store(); }
StoreServerStatus StoreServer::status() const { return impl_->status(); }

}  // namespace torchup
