#include "rendezvous/net/store/store_replies.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <memory>

#include "rendezvous/core/store/store_codec.hpp"

namespace torchup {
namespace {

/// How much was sent, or the error as a negative number.
ssize_t send_pieces(int socket, std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t sent = pieces.size() == 1 ? ::send(socket, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL)
                                          : ::sendmsg(socket, &message, MSG_NOSIGNAL);
  return sent < 0 ? -errno : sent;
}

}  // namespace

StoreReplies::StoreReplies(StoreConnections& connections, std::size_t reply_bytes_max, LogSink log,
                           std::function<void()> first_unsent)
    : connections_{connections}, reply_bytes_max_{reply_bytes_max}, log_{std::move(log)}, first_unsent_{
                                                                                              std::move(first_unsent)} {
  const auto min = send_batch_min(answers_per_flush);
  if (!min && log_) log_({LogLevel::warning, min.error().message()});
  batch_min_ = min ? *min : answers_per_flush;
  if (batch_min_ == 0) send_singly("TORCHUP_SEND_BATCH_MIN is 0");
}

/// Where that client's next field goes. Beyond the limit it goes nowhere.
std::string& StoreReplies::buffer(ClientId to) {
  StoreSession& session = connections_.at(to.value());
  if (!session.has_unsent) {
    offer_answered();
    session.has_unsent = true;
    unsent_.push_back(to.value());
    if (unsent_.size() == 1) first_unsent_();
  }
  if (session.overflow == Overflow::none && session.replies.size() < reply_bytes_max_) [[likely]]
    return session.replies.buffer();
  if (session.overflow == Overflow::none) session.overflow = Overflow::of_one;
  thrown_away_.clear();
  return thrown_away_;
}

/// One request may answer thousands who waited. While the engine goes on to the next of them, what the kernel takes
/// leaves; nobody is closed, for that is the engine's business too. Of what is left the longest is thrown away.
void StoreReplies::offer_answered() {
  constexpr std::size_t worth_a_look = std::size_t{8} << 20;
  if (unsent_.size() <= flushed_) {
    unoffered_bytes_ = 0;
    return;
  }
  unoffered_bytes_ += connections_.at(unsent_.back()).replies.own_bytes();
  if (unoffered_bytes_ < worth_a_look) return;
  unoffered_bytes_ = 0;
  std::size_t left = 0;
  const auto uncounted = [](const StoreSession& session) {
    return session.replies.own_bytes() - std::min(session.replies.own_bytes(), session.unread_bytes);
  };
  const std::span answered{unsent_.begin() + static_cast<std::ptrdiff_t>(flushed_), unsent_.end()};
  for (const std::uint32_t index : answered) {
    StoreSession& session = connections_.at(index);
    ReplyOffer offered;
    if (!session.closed) offer(session, offered);
    left += uncounted(session);
  }
  while (connections_.held_bytes() + left > connections_.held_bytes_max()) {
    const auto longest =
        std::ranges::max_element(answered, {}, [&](std::uint32_t index) { return uncounted(connections_.at(index)); });
    const std::size_t bytes = uncounted(connections_.at(*longest));
    if (bytes == 0) return;
    left -= bytes;
    connections_.throw_away(connections_.at(*longest), Overflow::of_all);
  }
}

void StoreReplies::byte(ClientId to, std::uint8_t value) { put_byte(buffer(to), value); }
void StoreReplies::number(ClientId to, std::int64_t value) { put_number(buffer(to), value); }
void StoreReplies::nonce(ClientId to, std::uint32_t value) { put_nonce(buffer(to), value); }
void StoreReplies::bytes(ClientId to, std::string_view value) { put_bytes(buffer(to), value); }

void StoreReplies::bytes(ClientId to, const Value& value) { put(to, value, true); }
void StoreReplies::given(ClientId to, const Value& value) { put(to, value, false); }

void StoreReplies::put(ClientId to, const Value& value, bool in_store) {
  std::string& out = buffer(to);
  if (value.size() < ReplyQueue::share_min) return put_bytes(out, value.view());
  put_number(out, static_cast<std::int64_t>(value.size()));
  StoreSession& session = connections_.at(to.value());
  if (session.overflow != Overflow::none) return;
  session.replies.share(value, in_store, connections_.values());
  ++unsent_values_;
}

void StoreReplies::fields(ClientId to, std::string encoded) {
  buffer(to);  // behind what stands there
  StoreSession& session = connections_.at(to.value());
  if (session.overflow != Overflow::none) return;
  const auto kept = std::make_shared<const std::string>(std::move(encoded));
  session.replies.share(Value{std::shared_ptr<const char[]>{kept, kept->data()}, kept->size()}, false,
                        connections_.values());
  ++unsent_values_;
}

void StoreReplies::released(const Value& value) {
  if (value.size() >= ReplyQueue::share_min) connections_.values().released(value);
}

void StoreReplies::close(ClientId client, std::string reason) { refusal_.emplace(client, std::move(reason)); }

std::span<const StoreReplies::Answered> StoreReplies::next_unsent() {
  const bool together = leave_together(unsent_.size() - flushed_);
  const std::size_t wanted = together ? SendBatch::size_max : 1;
  answered_.clear();
  while (flushed_ < unsent_.size() && answered_.size() < wanted) {
    StoreSession& session = connections_.at(unsent_[flushed_++]);
    session.has_unsent = false;
    if (!session.closed) answered_.push_back({&session});
  }
  if (answered_.empty()) {
    unsent_.clear();
    flushed_ = unsent_values_ = 0;
  } else if (together) {
    send_together();
  }
  return answered_;
}

/// Whether so many are worth a batch. It is made when they are more than a small job has; from then on a few will do.
bool StoreReplies::leave_together(std::size_t count) {
  if (count < batch_min_) return false;
  if (batch_) return true;
  constexpr std::size_t few = 3;
  batch_min_ = std::min(batch_min_, few);
  auto made = SendBatch::make();
  if (!made) return send_singly(made.error().message()), false;
  batch_.emplace(std::move(*made));
  return true;
}

void StoreReplies::send_singly(const std::string& reason) {
  batch_min_ = std::numeric_limits<std::size_t>::max();
  if (log_) log_({LogLevel::debug, "the store's answers leave one by one, each with a call of its own: " + reason});
}

/// Nobody is served before the queues of all know what has been sent of them: who is served may answer, refuse and
/// close any other.
void StoreReplies::send_together() {
  for (Answered& each : answered_) {
    // A queue of several pieces is as good as a batch: the values in it cost more than the way into the kernel.
    const std::string_view bytes = each.session->replies.only_piece();
    each.in_batch = !bytes.empty() && each.session->overflow == Overflow::none && !each.session->sink;
    if (each.in_batch) batch_->add(each.session->socket.get(), bytes);
  }
  ++batches_;
  const std::span<const int> results = batch_->send();
  std::size_t next = 0;
  for (Answered& each : answered_)
    if (each.in_batch) took(*each.session, results[next++], each.offered);
}

/// Gives the kernel what it takes.
void StoreReplies::offer(StoreSession& session, ReplyOffer& offered) {
  while (!session.replies.empty() && !offered.full && !offered.failed) {
    std::array<iovec, 64> pieces;
    const std::size_t count = session.replies.front(pieces);
    const std::span front{pieces.data(), count};
    took(session, session.sink ? session.sink->take(front) : send_pieces(session.socket.get(), front), offered);
  }
}

/// What has come of one send, by itself or in a batch: bytes of the queue's front, or an error as a negative number.
void StoreReplies::took(StoreSession& session, ssize_t sent, ReplyOffer& offered) {
  if (sent >= 0) {
    session.replies.pop(static_cast<std::size_t>(sent), connections_.values());
    offered.progress = true;
  } else if (sent == -EAGAIN) {
    offered.full = true;
  } else if (sent != -EINTR) {
    offered.failed = true;
  }
}

void StoreReplies::send(StoreSession& session, ReplyOffer offered) {
  if (session.overflow == Overflow::of_one) {
    return connections_.refuse(session,
                               fmt::format("reply_bytes_max: an answer of more than {} bytes", reply_bytes_max_));
  }
  if (session.overflow == Overflow::of_all) {
    return connections_.refuse(session, "unread_bytes_max: answers to many at once, those to this peer the longest");
  }
  offer(session, offered);
  if (offered.failed) return connections_.close(session);
  if (session.replies.empty() && session.peer_closed) return connections_.close(session);
  connections_.count_unread(session, offered.progress);
  if (!session.closed) connections_.update_interest(session);
}

}  // namespace torchup
