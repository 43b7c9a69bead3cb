#include "rendezvous/net/store/store_connections.hpp"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>
#include <system_error>
#include <utility>

#include "rendezvous/net/io/address.hpp"
#include "rendezvous/net/io/listen.hpp"

namespace torchup {
namespace {

/// Of those in the queue, who holds most for the longest time: not the newcomer who happens to meet the limit.
template <class Bytes>
StoreSession* worst_of(std::initializer_list<const DeadlineQueue*> queues, TimePoint now, Bytes bytes) {
  StoreSession* worst = nullptr;
  double worst_score = 0;
  for (const DeadlineQueue* queue : queues) {
    for (const Deadline& deadline : queue->entries()) {
      const auto [held, since] = bytes(*deadline.session, deadline);
      const double age = std::chrono::duration<double>(now - since).count() + 0.001;  // all may have come just now
      const double score = static_cast<double>(held) * age;
      if (held == 0 || score <= worst_score) continue;
      worst = deadline.session;
      worst_score = score;
    }
  }
  return worst;
}

}  // namespace

StoreConnections::StoreConnections(const ConnectionLimits& limits, bool shared_port, int epoll, LogSink log,
                                   ClosingHandler closing)
    : limits_{limits}, epoll_{epoll}, log_{std::move(log)}, closing_{std::move(closing)},
      handshakes_{limits.handshake_max}, requests_{limits.request_max}, stalled_{limits.stalled_max},
      large_{limits.large_reply_max} {
  const std::size_t descriptors = descriptors_for_peers();
  // All of a large job connect at once, and speak when they get to it. At the last descriptor newcomers give way
  // anyway.
  unproven_max_ = std::max<std::size_t>(1, std::min(descriptors, limits.connections_max) / 4 * 3);
  clients_max_ = std::min(limits.connections_max, descriptors - (shared_port ? descriptors / 4 : 0));
  fields_.message_bytes_max = limits.request_bytes_max;
}

std::uint32_t StoreConnections::free_index() {
  std::uint32_t index = static_cast<std::uint32_t>(sessions_.size());
  if (free_.empty()) {
    sessions_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  return index;
}

StoreSession* StoreConnections::add(StoreSink& sink, std::string from) {
  if (count_ - unproven_ >= limits_.connections_max) return nullptr;  // it costs no descriptor
  const std::uint32_t index = free_index();
  sessions_[index] = std::make_unique<StoreSession>(index, UniqueFd{}, fields_);
  StoreSession& session = *sessions_[index];
  session.sink = &sink;
  session.from = std::move(from);
  session.language_known = true;
  ++count_;
  ++unproven_;
  handshakes_.begin(session.handshake, now_);
  return &session;
}

StoreSession* StoreConnections::add(UniqueFd socket) {
  const std::uint32_t index = free_index();
  if (!watch(socket.get(), index, EPOLLIN | EPOLLET, EPOLL_CTL_ADD)) {
    refuse(socket.get(), "epoll_ctl: " + std::generic_category().message(errno));
    free_.push_back(index);
    return nullptr;
  }
  sessions_[index] = std::make_unique<StoreSession>(index, std::move(socket), fields_);
  ++count_;
  ++unproven_;
  handshakes_.begin(sessions_[index]->handshake, now_);
  return sessions_[index].get();
}

void StoreConnections::proved(StoreSession& session) {
  session.stranger.settle();
  if (!session.handshake.is_linked()) return;
  DeadlineQueue::end(session.handshake);
  --unproven_;
  if (session.sink) {
    ++channels_;
    session.counts_as_channel = true;
  }
}

// Ending.

void StoreConnections::refuse(StoreSession& session, const std::string& reason) {
  if (session.closed) return;
  // What was answered before the offence is still sent, as far as it goes.
  if (session.socket && !session.replies.empty() && session.overflow == Overflow::none) {
    std::array<iovec, 64> pieces;
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = session.replies.front(pieces);
    ::sendmsg(session.socket.get(), &message, MSG_NOSIGNAL);
  }
  if (session.sink) {
    tell_refusal(session.from, session.from, reason);
  } else {
    refuse(session.socket.get(), reason);
  }
  close(session);
}

void StoreConnections::refuse(int socket, const std::string& reason) {
  tell_refusal(peer_text(socket), peer_address(socket), reason);
}

void StoreConnections::tell_refusal(const std::string& who, std::string address, const std::string& reason) {
  ++refused_;
  if (!log_) return;
  // Refusals at one limit are one message; numbers and bytes behind its name differ.
  std::string kind = "closed: " + reason.substr(0, reason.find_first_of(":("));
  LogLine line{LogLevel::warning, std::move(kind), fmt::format("closed {}: {}", who, reason)};
  log_(std::move(line).because_of(std::move(address)));
}

void StoreConnections::close(StoreSession& session) {
  if (session.closed) return;
  session.closed = true;
  if (std::exchange(session.counts_as_channel, false)) --channels_;
  closing_(session);
  if (session.socket) {
    // Closing alone would not do while another process holds the socket too: a child between its fork and its exec.
    unwatch(session.socket.get());
    session.socket.reset();
  }
  if (auto* const sink = std::exchange(session.sink, nullptr)) sink->closed();
  proved(session);
  arriving_bytes_ -= std::exchange(session.arriving_bytes, 0);
  own_unread_bytes_ -= std::exchange(session.unread_bytes, 0);
  session.replies.clear(values_);
  session.unserved = {};
  for (Deadline* deadline : {&session.request, &session.stalled, &session.large}) DeadlineQueue::end(*deadline);
  closed_.push_back(session.index);
}

void StoreConnections::release_closed() {
  for (const std::uint32_t index : closed_) {
    sessions_[index].reset();
    free_.push_back(index);
    --count_;
  }
  closed_.clear();
}

// What epoll tells.

bool StoreConnections::watch(int socket, std::uint64_t tag, std::uint32_t events, int operation) const {
  epoll_event event{};
  event.events = events & EPOLLIN ? events | EPOLLRDHUP : events;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_, operation, socket, &event) == 0;
}

void StoreConnections::unwatch(int socket) const { ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr); }

void StoreConnections::update_interest(StoreSession& session) {
  const bool read = !session.peer_closed && session.unserved.empty() && has_room(session);
  const std::uint32_t interest =
      (read ? std::uint32_t{EPOLLIN} : 0) | (session.replies.empty() ? 0 : std::uint32_t{EPOLLOUT});
  if (interest == session.interest) return;
  session.interest = interest;
  tell_again(session);
}

void StoreConnections::tell_again(StoreSession& session) {
  if (session.sink) return;  // it tells us
  if (!watch(session.socket.get(), session.index, session.interest | EPOLLET, EPOLL_CTL_MOD))
    refuse(session, "epoll_ctl: " + std::generic_category().message(errno));
}

// Memory.

void StoreConnections::count_arriving(StoreSession& session, const RequestReader* reader) {
  const bool unfinished = reader && reader->in_request();
  const std::size_t held = (unfinished ? reader->held_bytes() : 0) + session.unserved.size();
  arriving_bytes_ = arriving_bytes_ - session.arriving_bytes + held;
  session.arriving_bytes = held;
  if (unfinished && !session.handshake.is_linked()) {
    requests_.begin(session.request, now_);
  } else {
    DeadlineQueue::end(session.request);
  }
  if (arriving_bytes_ > limits_.arriving_bytes_max) drop_senders();
}

void StoreConnections::drop_senders() {
  // Requests may be unfinished, or wait until their sender reads what he was answered.
  const auto held = [](const StoreSession& session, const Deadline& deadline) {
    return std::pair{session.arriving_bytes, &deadline == &session.stalled ? session.unread_since : deadline.begun};
  };
  while (arriving_bytes_ > limits_.arriving_bytes_max) {
    StoreSession* const worst = worst_of({&requests_, &stalled_}, now_, held);
    if (!worst) return;  // the rest waits for its turn, and has it soon
    refuse(*worst,
           fmt::format("arriving_bytes_max: requests that are not served hold {} bytes, of which this one has {}",
                       arriving_bytes_, worst->arriving_bytes));
  }
}

void StoreConnections::count_unread(StoreSession& session, bool progress) {
  const bool unread = !session.replies.empty();
  const bool was_unread = session.stalled.is_linked();
  if (!unread && !was_unread) return;  // the rule
  const std::size_t held = unread ? session.replies.own_bytes() : 0;
  own_unread_bytes_ = own_unread_bytes_ - session.unread_bytes + held;
  session.unread_bytes = held;
  if (!was_unread) session.unread_since = now_;
  if (progress || !unread) DeadlineQueue::end(session.stalled);
  if (unread) stalled_.begin(session.stalled, now_);
  if (session.replies.size() >= limits_.large_reply_bytes) {
    large_.begin(session.large, now_);
  } else {
    DeadlineQueue::end(session.large);
  }
  drop_readers();
}

void StoreConnections::drop_readers() {
  const auto held = [](const StoreSession& session, const Deadline&) {
    return std::pair{session.replies.held_bytes(), session.unread_since};
  };
  while (held_bytes() > limits_.unread_bytes_max) {
    StoreSession* const worst = worst_of({&stalled_}, now_, held);
    if (!worst) return;  // the rest is answers that have not been offered to the kernel yet
    refuse(*worst, fmt::format("unread_bytes_max: answers that nobody reads hold {} bytes, those to this peer {}",
                               held_bytes(), worst->replies.held_bytes()));
  }
}

void StoreConnections::throw_away(StoreSession& session, Overflow which) {
  session.overflow = which;
  own_unread_bytes_ -= std::exchange(session.unread_bytes, 0);
  session.replies.clear(values_);
}

// Time.

void StoreConnections::expire() {
  while (StoreSession* session = handshakes_.expired(now_))
    refuse(*session, "handshake_max: no VALIDATE within " + handshakes_.limit_text());
  while (StoreSession* session = requests_.expired(now_))
    refuse(*session, "request_max: a request not complete within " + requests_.limit_text());
  while (StoreSession* session = stalled_.expired(now_))
    refuse(*session, "stalled_max: answers not read for " + stalled_.limit_text());
  while (StoreSession* session = large_.expired(now_))
    refuse(*session, fmt::format("large_reply_max: {} bytes of answers lie unread for {}", session->replies.size(),
                                 large_.limit_text()));
  drop_readers();  // of values that the store's holder replaced
}

}  // namespace torchup
