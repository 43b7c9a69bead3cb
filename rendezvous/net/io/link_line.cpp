#include "rendezvous/net/io/link_line.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

namespace torchup {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

constexpr std::size_t line_read_bytes = std::size_t{16} << 10;  // at once
/// What the coordinator says waits in its socket while so much lies before the host.
constexpr std::size_t agents_ahead_max = std::size_t{256} << 10;
/// One acknowledgement for so much.
constexpr std::size_t acknowledged_at_once = link_window_bytes / 8;

TimePoint now() { return std::chrono::steady_clock::now(); }

std::array<char, line_read_bytes>& shared_buffer() {
  static thread_local std::array<char, line_read_bytes> buffer;
  return buffer;
}

}  // namespace

LinkLine::LinkLine(asio::io_context& loop, UniqueFd in, UniqueFd out, Handlers handlers)
    : in_{loop}, out_{loop}, agents_{loop}, handlers_{std::move(handlers)}, timer_{loop} {
  error_code ignored;
  in_.assign(in.release(), ignored);
  out_.assign(out.release(), ignored);
  in_.non_blocking(true, ignored);
  out_.non_blocking(true, ignored);
}

void LinkLine::start() {
  heard_at_ = said_at_ = now();
  wait_input();
  watch();
}

void LinkLine::send(const FrontMessage& message) { append(LinkChannel::control, encode(message)); }

void LinkLine::acknowledge(std::size_t bytes) {
  taken_ += bytes;
  if (taken_ < acknowledged_at_once) return;
  send(LinkAck{static_cast<std::uint32_t>(std::exchange(taken_, 0))});
}

Result<UniqueFd> LinkLine::open_agents() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return system_error("no socket for an agent");
  }
  UniqueFd theirs{ends[1]};
  error_code ignored;
  agents_.assign(ends[0], ignored);
  wait_agents();
  return theirs;
}

void LinkLine::close() {
  let_go_ = true;
  shut();
}

void LinkLine::shut() {
  if (std::exchange(closed_, true)) return;
  error_code ignored;
  for (Descriptor* each : {&in_, &out_, &agents_}) each->close(ignored);
  timer_.cancel();
  for (std::string* each : {&control_, &output_, &for_agents_}) std::string{}.swap(*each);
}

void LinkLine::fail(std::string why) {
  if (closed_) return;
  shut();
  asio::post(timer_.get_executor(), [self = shared_from_this(), why = std::move(why)] {
    if (!self->let_go_) self->handlers_.broken(why);
  });
}

// ---- what comes

void LinkLine::wait_input() {
  in_.async_wait(Descriptor::wait_read, [self = shared_from_this()](const error_code& error) {
    if (error || self->closed_) return;
    self->read_input();
  });
}

void LinkLine::read_input() {
  auto& buffer = shared_buffer();
  error_code error;
  const std::size_t count = in_.read_some(asio::buffer(buffer), error);
  if (error == asio::error::would_block) return wait_input();
  if (error) return fail(error == asio::error::eof ? "" : error.message());
  heard_at_ = now();
  if (greeted_ && input_.empty()) {
    const std::string_view rest = look_at({buffer.data(), count});
    input_ = rest;
  } else {
    input_.append(buffer.data(), count);
    if (greeted_ || look_for_greeting()) input_.erase(0, input_.size() - look_at(input_).size());
  }
  if (input_.empty()) std::string{}.swap(input_);
  if (!closed_) wait_input();
}

/// Returns what is no whole frame yet.
std::string_view LinkLine::look_at(std::string_view rest) {
  while (!closed_) {
    const auto frame = take_link_frame(rest);
    if (!frame) {
      fail("it speaks another language: " + frame.error().message());
      break;
    }
    if (!frame->has_value()) return rest;
    take(**frame);
  }
  return {};
}

/// What a login shell prints before it has lines, or an open one in front of the greeting.
bool LinkLine::look_for_greeting() {
  const std::size_t at = input_.find(link_greeting);
  greeted_ = at != std::string::npos;
  // A part of the greeting may stand at the end.
  const std::size_t kept = std::min(input_.size(), link_greeting.size() - 1);
  const std::size_t known = greeted_ ? at : input_.size() - kept;
  if (known > 0) handlers_.before(std::string_view{input_}.substr(0, known));
  input_.erase(0, known + (greeted_ ? link_greeting.size() : 0));
  return greeted_;
}

void LinkLine::take(const LinkFrame& frame) {
  switch (frame.channel) {
    case LinkChannel::control:
      return take_control(frame.bytes);
    case LinkChannel::agents:
      return to_agents(frame.bytes);
    case LinkChannel::out:
    case LinkChannel::err:
    case LinkChannel::events:
    case LinkChannel::result:
      return handlers_.output(frame.channel, frame.bytes);
  }
}

void LinkLine::take_control(std::string_view bytes) {
  control_ += bytes;
  std::string_view rest = control_;
  for (;;) {
    auto message = take_far_message(rest);
    if (!message) return fail("it speaks another language: " + message.error().message());
    if (!message->has_value()) break;
    handlers_.message(**std::move(message));
    if (closed_) return;
  }
  control_.erase(0, control_.size() - rest.size());
}

// ---- the agents' channel

void LinkLine::to_agents(std::string_view bytes) {
  if (!agents_.is_open() || agents_ended_) return;
  error_code error;
  if (for_agents_.empty()) {
    const std::size_t sent = agents_.write_some(asio::buffer(bytes.data(), bytes.size()), error);
    if (!error) bytes.remove_prefix(sent);
    if (error && error != asio::error::would_block) return;  // the coordinator has closed it, and says so by reading
  }
  if (bytes.empty()) return;
  if (for_agents_.size() + bytes.size() > link_unsent_bytes_max) return fail("it says more than can be heard");
  for_agents_ += bytes;
  if (!waiting_agents_output_) wait_agents_output();
}

void LinkLine::wait_agents_output() {
  waiting_agents_output_ = true;
  agents_.async_wait(Descriptor::wait_write, [self = shared_from_this()](const error_code& error) {
    self->waiting_agents_output_ = false;
    if (error || self->closed_) return;
    self->to_agents(std::exchange(self->for_agents_, {}));
  });
}

void LinkLine::wait_agents() {
  if (waiting_agents_ || agents_ended_ || output_.size() > agents_ahead_max) return;
  waiting_agents_ = true;
  agents_.async_wait(Descriptor::wait_read, [self = shared_from_this()](const error_code& error) {
    self->waiting_agents_ = false;
    if (error || self->closed_) return;
    self->read_agents();
  });
}

void LinkLine::read_agents() {
  auto& buffer = shared_buffer();
  error_code error;
  const std::size_t count = agents_.read_some(asio::buffer(buffer), error);
  if (error && error != asio::error::would_block) {
    agents_ended_ = true;  // the agent hears it from the verdict, or ends with the link
    return;
  }
  if (!error) append(LinkChannel::agents, {buffer.data(), count});
  wait_agents();
}

// ---- what goes

void LinkLine::append(LinkChannel channel, std::string_view bytes) {
  if (closed_) return;
  if (output_.size() + bytes.size() > link_unsent_bytes_max) return fail("it does not read what it is told");
  append_link_frames(output_, channel, bytes);
  said_at_ = now();
  if (!waiting_output_) write();
}

void LinkLine::write() {
  std::size_t sent = 0;
  while (sent < output_.size()) {
    error_code error;
    sent += out_.write_some(asio::buffer(output_) + sent, error);
    if (error == asio::error::would_block) break;
    if (error) {  // what it said before its end is still to be read
      output_.clear();
      return;
    }
  }
  output_.erase(0, sent);
  if (!output_.empty()) wait_output();
}

void LinkLine::wait_output() {
  waiting_output_ = true;
  out_.async_wait(Descriptor::wait_write, [self = shared_from_this()](const error_code& error) {
    self->waiting_output_ = false;
    if (error || self->closed_) return;
    self->write();
    if (self->agents_.is_open()) self->wait_agents();
  });
}

// ---- signs of life

void LinkLine::watch() {
  const TimePoint ping_at = said_at_ + link_ping_interval;
  timer_.expires_at(greeted_ ? std::min(ping_at, heard_at_ + link_silence_max) : ping_at);
  timer_.async_wait([weak = weak_from_this()](const error_code& error) {
    const auto self = weak.lock();
    if (error || !self || self->closed_) return;
    if (self->greeted_ && now() >= self->heard_at_ + link_silence_max) {
      return self->fail(fmt::format("it was silent for {} s",
                                    std::chrono::duration_cast<std::chrono::seconds>(link_silence_max).count()));
    }
    if (now() >= self->said_at_ + link_ping_interval) self->send(LinkPing{});
    self->watch();
  });
}

}  // namespace torchup
