#include "rendezvous/net/store/store_requests.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "rendezvous/net/io/address.hpp"

namespace torchup {
namespace {

constexpr std::size_t scratch_bytes = 64 * 1024;

/// LIST_KEYS has no fields: the request that was read, and what has come behind it.
std::string list_again(std::string_view rest) {
  return std::string(1, static_cast<char>(Query::list_keys)).append(rest);
}

}  // namespace

StoreRequests::StoreRequests(const StoreServerOptions& options, StoreConnections& connections, StoreReplies& replies,
                             Store& store, std::function<void()> have_turn)
    : connections_{connections}, replies_{replies}, store_{store}, have_turn_{std::move(have_turn)},
      other_language_{options.other_language}, admits_{options.admits}, refused_{options.refused},
      scratch_(scratch_bytes) {
  fields_.message_bytes_max = options.connections.request_bytes_max;
  idle_reader_ = std::make_unique<RequestReader>(fields_, true);
  keep_spare();
}

void StoreRequests::keep_spare() {
  constexpr std::size_t spare_bytes = 256 * 1024;
  if (!spare_) spare_.reset(new (std::nothrow) char[spare_bytes]);
}

void StoreRequests::watch(std::string_view prefix, StoreWatcher& watcher) {
  watched_prefix_ = prefix;
  watcher_ = &watcher;
}

void StoreRequests::apply_taken(ClientId client, Request& request) {
  connections_.at(client.value()).held = false;
  apply_seen(client, request);
  refuse_if_told();
}

void StoreRequests::gone(ClientId client) {
  if (watcher_) watcher_->gone(client);
}

void StoreRequests::receive_all(StoreSession& session, std::uint32_t events) {
  const bool to_the_end = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
  constexpr int pieces_max = 16;
  for (int pieces = 0; session.interest & EPOLLIN; ++pieces) {
    if (pieces == pieces_max) return connections_.tell_again(session);  // others' turn
    if (!receive(session) || session.closed || (!piece_was_full_ && !to_the_end)) return;
    send_replies(session);  // or they would pile up
    if (session.closed) return;
  }
}

bool StoreRequests::receive(StoreSession& session) {
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
    connections_.close(session);
    return true;
  }
  if (got == 0) {
    session.peer_closed = true;
    // Answers that are still on their way are owed to a peer that has only finished asking.
    session.replies.empty() ? connections_.close(session) : connections_.update_interest(session);
    return true;
  }
  const std::size_t count = static_cast<std::size_t>(got), to_value = std::min(count, direct.size());
  piece_was_full_ = count == direct.size() + scratch_.size();
  reader.filled(to_value);
  serve(session, {scratch_.data(), count - to_value});
  return true;
}

void StoreRequests::heard(StoreSession& session, std::string_view bytes) {
  const bool waits = !session.unserved.empty() || session.paused || !connections_.has_room(session);
  if (!waits) return serve(session, bytes);
  session.unserved += bytes;
  connections_.count_arriving(session, session.reader.get());
}

/// Looks at the first byte of a connection, without taking it. False when the connection is not, or no longer, ours.
bool StoreRequests::begin(StoreSession& session) {
  unsigned char first = 0;
  const ssize_t got = ::recv(session.socket.get(), &first, 1, MSG_PEEK);
  if (got <= 0) {
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) connections_.close(session);
    return false;
  }
  session.language_known = true;
  if (first == 0) return admit(session);
  if (other_language_) {
    session.stranger.settle();  // it is one of theirs then
    connections_.unwatch(session.socket.get());
    if (other_language_(first, session.socket)) {
      connections_.close(session);
      return false;
    }
  }
  connections_.refuse(session, fmt::format("not a TCPStore client (its first byte is {})", first));
  return false;
}

/// Whether there is room for one client more: asked with its first byte, and once more when it is known to be one, for
/// many may have begun by then.
bool StoreRequests::has_place(StoreSession& session) {
  if (session.sink || !connections_.full()) return true;
  connections_.refuse(session, fmt::format("connections_max: {} are connected", connections_.clients_max()));
  return false;
}

/// What has said VALIDATE is a client from then on. False: there was no room for it.
bool StoreRequests::prove(StoreSession& session, const RequestReader& reader) {
  if (!session.handshake.is_linked() || !reader.validated()) return true;
  if (!has_place(session)) return false;
  connections_.proved(session);
  return true;
}

/// Whether this client of the store is served: the one place where that is decided.
bool StoreRequests::admit(StoreSession& session) {
  if (has_place(session) && admits_) {
    const std::string address = peer_address(session.socket.get());
    const bool admitted = admits_(address);
    if (!admitted && refused_) {
      refused_(address);
      connections_.close(session);
    } else if (!admitted) {
      connections_.refuse(
          session, fmt::format("not admitted: a store client from {} proves no token, and is neither of this machine "
                               "nor of a member of the job; --allow {} would let it in",
                               address, address));
    }
  }
  return !session.closed;
}

/// Serves the requests in `input`, and keeps those whose answers would find no room.
void StoreRequests::serve(StoreSession& session, std::string_view input) {
  RequestReader* const reader = session.reader ? session.reader.get() : idle_reader_.get();
  try {
    serve_with(session, *reader, input);
    if (!session.closed) settle(session, *reader);
    if (session.sink) session.sink->served(session.unserved.size());
  } catch (const std::bad_alloc&) {
    spare_.reset();
    session.reader.reset();
    idle_reader_ = std::make_unique<RequestReader>(fields_, true);
    connections_.refuse(session, "this process has no memory left for its requests");
    keep_spare();
  }
}

void StoreRequests::serve_with(StoreSession& session, RequestReader& reader, std::string_view input) {
  for (;;) {
    const auto status = reader.read(input, request_);
    if (status == RequestReader::Status::malformed) return connections_.refuse(session, reader.error());
    if (status == RequestReader::Status::incomplete) return;
    if (!prove(session, reader)) return;
    if (request_.query == Query::list_keys && !may_list(session)) return wait_for_list(session, list_again(input));
    ++served_;
    ++served_of_[static_cast<std::size_t>(request_.query)];
    apply(session);
    if (refuse_if_told() || session.closed) return;
    connections_.drop_readers();  // of values that it replaced
    if (session.closed) return;
    if (!input.empty() && turn_is_over()) return pause(session, std::string{input});
    if (connections_.has_room(session)) continue;
    replies_.send(session);
    if (session.closed) return;
    if (connections_.has_room(session)) continue;
    session.unserved.assign(input);
    return connections_.update_interest(session);
  }
}

/// Asked between two requests of one client only, and looks at the clock now and then: it costs as much as a request.
bool StoreRequests::turn_is_over() {
  if (served_ % store_slice_requests != 0) return false;
  connections_.look_at_clock();
  return connections_.now() >= turn_end_;
}

/// One byte asks for it, and it may take as long as a million other requests: all who ask stand in one line, of which
/// each turn serves the first, after everybody else and in steps.
bool StoreRequests::may_list(const StoreSession& session) const {
  return store_.key_count() <= store_short_list || store_.has_list(ClientId{session.index});
}

void StoreRequests::wait_for_list(StoreSession& session, std::string rest) {
  session.unserved = std::move(rest);
  session.paused = session.lists = true;
  listers_.push_back(session.index);
  connections_.update_interest(session);
  go_on();
}

void StoreRequests::pause(StoreSession& session, std::string rest) {
  session.unserved = std::move(rest);
  session.paused = true;
  paused_.push_back(session.index);
  connections_.update_interest(session);
  go_on();
}

void StoreRequests::go_on() {
  if (!std::exchange(going_on_, true)) have_turn_();
}

void StoreRequests::serve_paused() {
  going_on_ = false;
  const std::vector<std::uint32_t> line = std::exchange(paused_, {});
  auto next = line.begin();
  while (next != line.end()) {
    StoreSession* const session = connections_.find(*next++);
    if (!session || session->closed || session->lists || !std::exchange(session->paused, false)) continue;
    send_replies(*session);
    connections_.look_at_clock();
    if (connections_.now() >= turn_end_) break;
  }
  paused_.insert(paused_.begin(), next, line.end());
  serve_lister();
  if (!paused_.empty() || !listers_.empty()) go_on();
}

/// One step at least, so that it comes to its end however many others there are.
void StoreRequests::serve_lister() {
  constexpr std::size_t keys_of_step = 1024;
  while (!listers_.empty()) {
    StoreSession* const session = connections_.find(listers_.front());
    if (!session || session->closed || !session->lists) {
      listers_.pop_front();
      continue;
    }
    if (!connections_.has_room(*session)) {  // it asks again when it has read
      leave_line(*session);
      continue;
    }
    bool made = false;
    try {
      do {
        made = store_.prepare_list(ClientId{session->index}, keys_of_step);
        connections_.look_at_clock();
      } while (!made && connections_.now() < turn_end_);
    } catch (const std::bad_alloc&) {
      return connections_.refuse(*session, "this process has no memory left for the list of all keys");
    }
    if (!made) return;
    listers_.pop_front();
    session->lists = session->paused = false;
    if (!refuse_if_told()) send_replies(*session);
    return;
  }
}

/// Somebody else's answer came before its list, and fills what may lie unread.
void StoreRequests::leave_line(StoreSession& session) {
  store_.forget_list(ClientId{session.index});
  listers_.pop_front();
  session.lists = session.paused = false;
  connections_.update_interest(session);
}

void StoreRequests::apply(StoreSession& session) {
  if (session.held) [[unlikely]]
    return connections_.refuse(session, "it asks for more before torchrun's state is answered");
  const ClientId client{session.index};
  const bool seen =
      watcher_ &&
      (request_.query == Query::set || request_.query == Query::get || request_.query == Query::compare_set) &&
      request_.key.starts_with(watched_prefix_);
  if (!seen) return store_.apply(client, request_);
  const auto taken = watcher_->takes(client, request_);
  if (taken == StoreWatcher::Taken::held) session.held = true;
  if (taken == StoreWatcher::Taken::no) apply_seen(client, request_);
}

void StoreRequests::apply_seen(ClientId client, Request& request) {
  if (request.query != Query::compare_set) return store_.apply(client, request);
  const Value* const stored = store_.find(request.key);
  const bool stores = stored ? *stored == request.values.at(0) : request.values.at(0).size() == 0;
  store_.apply(client, request);
  if (stores) watcher_->compared(client, request.key);
}

bool StoreRequests::refuse_if_told() {
  const auto refusal = replies_.take_refusal();
  if (refusal) connections_.refuse(connections_.at(refusal->first.value()), refusal->second);
  return refusal.has_value();
}

/// Between requests the session gives its reader up. An unfinished one keeps it, and what that costs is counted:
/// memory, of all together, and time.
void StoreRequests::settle(StoreSession& session, RequestReader& reader) {
  const bool unfinished = reader.in_request();
  if (!unfinished && !session.reader && session.arriving_bytes == 0 && session.unserved.empty()) return;  // the rule
  if (!session.reader && unfinished) {
    session.reader = std::exchange(idle_reader_, std::make_unique<RequestReader>(fields_, true));
  }
  if (!prove(session, reader)) return;
  if (!unfinished && reader.validated()) session.reader.reset();
  connections_.count_arriving(session, session.reader.get());
}

void StoreRequests::flush() {
  for (auto answered = replies_.next_unsent(); !answered.empty(); answered = replies_.next_unsent())
    for (const auto& [session, offered, in_batch] : answered)
      if (!session->closed) send_replies(*session, offered);
}

void StoreRequests::send_replies(StoreSession& session, ReplyOffer offered) {
  replies_.send(session, offered);
  while (!session.closed && !session.paused && !session.unserved.empty() && connections_.has_room(session)) {
    const std::string input = std::exchange(session.unserved, {});
    serve(session, input);
    if (!session.closed) replies_.send(session);
  }
}

}  // namespace torchup
