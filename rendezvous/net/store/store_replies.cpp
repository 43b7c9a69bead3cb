#include "rendezvous/net/store/store_replies.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

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
    session.has_unsent = true;
    unsent_.push_back(to.value());
    if (unsent_.size() == 1) first_unsent_();
  }
  if (session.replies.size() < reply_bytes_max_) [[likely]]
    return session.replies.buffer();
  session.overflown = true;
  thrown_away_.clear();
  return thrown_away_;
}

void StoreReplies::byte(ClientId to, std::uint8_t value) { put_byte(buffer(to), value); }
void StoreReplies::number(ClientId to, std::int64_t value) { put_number(buffer(to), value); }
void StoreReplies::nonce(ClientId to, std::uint32_t value) { put_nonce(buffer(to), value); }
void StoreReplies::bytes(ClientId to, std::string_view value) { put_bytes(buffer(to), value); }

void StoreReplies::bytes(ClientId to, const Value& value) {
  std::string& out = buffer(to);
  if (value.size() < ReplyQueue::share_min) return put_bytes(out, value.view());
  put_number(out, static_cast<std::int64_t>(value.size()));
  StoreSession& session = connections_.at(to.value());
  if (!session.overflown) session.replies.share(value, connections_.values());
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

void StoreReplies::send(StoreSession& session) {
  if (session.overflown) {
    return connections_.refuse(session,
                               fmt::format("reply_bytes_max: an answer of more than {} bytes", reply_bytes_max_));
  }
  bool progress = false;
  while (!session.replies.empty()) {
    std::array<iovec, 64> pieces;
    const std::size_t count = session.replies.front(pieces);
    const ssize_t sent = send_pieces(session.socket.get(), {pieces.data(), count});
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) break;
      return connections_.close(session);
    }
    session.replies.pop(static_cast<std::size_t>(sent), connections_.values());
    progress = true;
  }
  if (session.replies.empty() && session.peer_closed) return connections_.close(session);
  connections_.count_unread(session, progress);
  if (!session.closed) connections_.update_interest(session);
}

}  // namespace torchup
