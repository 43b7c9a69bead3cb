#include "rendezvous/net/store/store_replies.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "rendezvous/core/store/store_codec.hpp"

namespace torchup {
namespace {

ssize_t send_pieces(int socket, std::span<iovec> pieces) {
  if (pieces.size() == 1) return ::send(socket, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL);
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

}  // namespace

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
    if (!session.closed) offer(session);
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
  if (session.overflow == Overflow::none) session.replies.share(value, in_store, connections_.values());
}

void StoreReplies::fields(ClientId to, std::string encoded) {
  buffer(to);  // behind what stands there
  StoreSession& session = connections_.at(to.value());
  if (session.overflow != Overflow::none) return;
  const auto kept = std::make_shared<const std::string>(std::move(encoded));
  session.replies.share(Value{std::shared_ptr<const char[]>{kept, kept->data()}, kept->size()}, false,
                        connections_.values());
}

void StoreReplies::released(const Value& value) {
  if (value.size() >= ReplyQueue::share_min) connections_.values().released(value);
}

void StoreReplies::close(ClientId client, std::string reason) { refusal_.emplace(client, std::move(reason)); }

StoreSession* StoreReplies::next_unsent() {
  while (flushed_ < unsent_.size()) {
    StoreSession& session = connections_.at(unsent_[flushed_++]);
    session.has_unsent = false;
    if (!session.closed) return &session;
  }
  unsent_.clear();
  flushed_ = 0;
  return nullptr;
}

/// Gives the kernel what it takes.
StoreReplies::Offered StoreReplies::offer(StoreSession& session) {
  Offered offered{};
  while (!session.replies.empty()) {
    std::array<iovec, 64> pieces;
    const std::size_t count = session.replies.front(pieces);
    const ssize_t sent = send_pieces(session.socket.get(), {pieces.data(), count});
    if (sent < 0) {
      if (errno == EINTR) continue;
      offered.failed = errno != EAGAIN;
      break;
    }
    session.replies.pop(static_cast<std::size_t>(sent), connections_.values());
    offered.progress = true;
  }
  return offered;
}

void StoreReplies::send(StoreSession& session) {
  if (session.overflow == Overflow::of_one) {
    return connections_.refuse(session,
                               fmt::format("reply_bytes_max: an answer of more than {} bytes", reply_bytes_max_));
  }
  if (session.overflow == Overflow::of_all) {
    return connections_.refuse(session, "unread_bytes_max: answers to many at once, those to this peer the longest");
  }
  const auto [progress, failed] = offer(session);
  if (failed) return connections_.close(session);
  if (session.replies.empty() && session.peer_closed) return connections_.close(session);
  connections_.count_unread(session, progress);
  if (!session.closed) connections_.update_interest(session);
}

}  // namespace torchup
