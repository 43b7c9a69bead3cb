#include "rendezvous/net/store/client_connection.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <new>

namespace torchup {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t buffer_bytes = 64 * 1024;
/// Larger values are sent from where the caller has them.
constexpr std::size_t copied_bytes_max = 16 * 1024;

/// A server's answer may be larger than what a client may send: appended values, lists of all keys.
constexpr FieldLimits reply_limits{.key_bytes_max = std::uint64_t{1} << 30,
                                   .value_bytes_max = std::uint64_t{1} << 40,
                                   .count_max = std::uint64_t{1} << 32,
                                   .message_bytes_max = std::uint64_t{1} << 42};

/// The kernel says ETIMEDOUT when it gives up a machine that is silent. To our callers that would be an answer that may
/// still come.
Error lost(const char* what) {
  if (errno == ETIMEDOUT) return system_error(ECONNRESET, "the store's machine gives no sign of life");
  return system_error(errno, what);
}

}  // namespace

void OutgoingRequest::value(std::string_view value) {
  if (value.size() <= copied_bytes_max) return put_bytes(bytes_, value);
  number(static_cast<std::int64_t>(value.size()));
  large_.push_back({bytes_.size(), value});
}

std::vector<iovec> OutgoingRequest::pieces() const {
  std::vector<iovec> all;
  std::size_t at = 0;
  const auto add = [&](std::string_view bytes) {
    if (!bytes.empty()) all.push_back({const_cast<char*>(bytes.data()), bytes.size()});
  };
  for (const auto& [position, value] : large_) {
    add(std::string_view{bytes_}.substr(at, position - at));
    add(value);
    at = position;
  }
  add(std::string_view{bytes_}.substr(at));
  return all;
}

ClientConnection::ClientConnection(UniqueFd socket, int cancel)
    : socket_{std::move(socket)}, cancel_{cancel}, reader_{reply_limits} {}

Result<> ClientConnection::send(const OutgoingRequest& request, TimePoint deadline) {
  std::vector<iovec> pieces = request.pieces();
  for (std::size_t first = 0; first < pieces.size();) {
    msghdr message{};
    message.msg_iov = pieces.data() + first;
    message.msg_iovlen = std::min<std::size_t>(pieces.size() - first, 64);
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return lost("request to the store");
      if (auto room = wait_for(POLLOUT, deadline); !room) return room;
      continue;
    }
    auto left = static_cast<std::size_t>(sent);
    for (; first < pieces.size() && left >= pieces[first].iov_len; ++first) left -= pieces[first].iov_len;
    if (left > 0) pieces[first] = {static_cast<char*>(pieces[first].iov_base) + left, pieces[first].iov_len - left};
  }
  return {};
}

Result<> ClientConnection::resume(TimePoint deadline) {
  for (;;) {
    FieldReader::Status status{};
    try {
      status = reader_.read(input_);
    } catch (const std::bad_alloc&) {
      return fail(errc::bad_frame, "the store announced a value larger than this machine's memory");
    }
    if (status == FieldReader::Status::complete) return {};
    if (status == FieldReader::Status::malformed)
      return fail(errc::bad_frame, "answer of the store: " + reader_.error());
    if (auto more = fill(deadline); !more) return more;
  }
}

Result<> ClientConnection::wait_for(short events, TimePoint deadline) {
  for (;;) {
    const auto left = deadline == TimePoint::max() ? milliseconds{1'000'000'000}
                                                   : std::chrono::ceil<milliseconds>(deadline - Clock::now());
    const int limit = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
    std::array<pollfd, 3> waiting{{{socket_.get(), events, 0}, {wake_, POLLIN, 0}, {cancel_, POLLIN, 0}}};
    const int ready = ::poll(waiting.data(), waiting.size(), limit);
    if (ready > 0 && waiting[2].revents != 0) return system_error(ECANCELED, "waiting for the store");
    if (ready > 0 && waiting[0].revents != 0) return {};
    if (ready > 0) return system_error(ETIMEDOUT, "woken while waiting for the store");
    if (ready < 0 && errno != EINTR) return system_error(errno, "waiting for the store");
    if (ready == 0 && Clock::now() >= deadline) return system_error(ETIMEDOUT, "no answer from the store in time");
  }
}

Result<> ClientConnection::fill(TimePoint deadline) {
  if (buffer_.empty()) buffer_.resize(buffer_bytes);
  const auto direct = reader_.direct_space();
  std::array<iovec, 2> pieces{{{direct.data(), direct.size()}, {buffer_.data(), buffer_.size()}}};
  ssize_t got = -1;
  const auto received = [&] {
    got = direct.empty() ? ::recv(socket_.get(), buffer_.data(), buffer_.size(), 0)
                         : ::readv(socket_.get(), pieces.data(), pieces.size());
    return got >= 0 || (errno != EAGAIN && errno != EINTR);
  };
  if (!received() && !spin_.run(received)) {
    do {
      if (auto ready = wait_for(POLLIN, deadline); !ready) return ready;
    } while (!received());
  }
  if (got < 0) return lost("answer of the store");
  if (got == 0)
    return system_error(ECONNRESET, "the store closed the connection: it has ended, or refused the request before");
  const auto to_value = std::min(static_cast<std::size_t>(got), direct.size());
  reader_.filled(to_value);
  input_ = {buffer_.data(), static_cast<std::size_t>(got) - to_value};
  return {};
}

}  // namespace torchup
