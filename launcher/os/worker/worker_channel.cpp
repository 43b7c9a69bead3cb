#include "launcher/os/worker/worker_channel.hpp"

#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "launcher/os/io/packet.hpp"

namespace torchup {

Result<ChannelPair> make_channel_pair() {
  auto ends = packet_pair();
  if (!ends) return ends.error();
  struct stat status {};
  if (::fstat((*ends)[1].get(), &status) != 0) return system_error("fstat");
  return ChannelPair{std::move((*ends)[0]), std::move((*ends)[1]), status.st_ino};
}

WorkerChannel::WorkerChannel(asio::io_context& loop, UniqueFd ours, Listener listener)
    : socket_{loop}, timer_{loop}, listener_{std::move(listener)} {
  if (!ours) return;
  socket_.assign(ours.release());
  wait();
}

void WorkerChannel::wait() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](boost::system::error_code error) {
    if (!error) read();
  });
}

void WorkerChannel::read() {
  // One byte more than a packet may have: a longer one does not pass for its beginning.
  std::array<char, worker_packet_bytes_max + 1> buffer;
  const std::weak_ptr<bool> alive = alive_;
  for (int count = 0; count < words_at_once; ++count) {
    const ssize_t size = ::recv(socket_.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return wait();
    if (size <= 0) return end({.deaf = size < 0 && errno == ECONNRESET});  // nobody says a packet of nothing
    auto word = parse_worker_word({buffer.data(), static_cast<std::size_t>(size)});
    if (!word) return end({.reason = word.error().message()});
    if (*word) listener_.heard(**std::move(word));
    if (alive.expired() || !socket_.is_open()) return;
  }
  timer_.expires_after(pause);
  timer_.async_wait([this, alive](boost::system::error_code error) {
    if (!error && !alive.expired() && socket_.is_open()) wait();
  });
}

void WorkerChannel::end(ChannelEnd how) {
  socket_.close();
  const auto ended = listener_.ended;  // it may destroy this
  ended(std::move(how));
}

bool WorkerChannel::say(const AgentWord& word) {
  if (!socket_.is_open()) return false;
  const auto packet = to_packet(word);
  std::string reason;
  if (!packet) {
    reason = packet.error().message();
  } else if (::send(socket_.native_handle(), packet->data(), packet->size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
    return true;
  } else if (errno == EAGAIN) {
    reason = "it does not read what is said to it";
  }
  asio::post(socket_.get_executor(), [this, reason, alive = std::weak_ptr<bool>{alive_}]() mutable {
    if (!alive.expired() && socket_.is_open()) end({.reason = std::move(reason)});
  });
  return false;
}

}  // namespace torchup
