#include "launcher/os/fan_out/link_streams.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits.h>
#include <algorithm>
#include <cerrno>

namespace torchup {
namespace {

constexpr std::size_t link_read_bytes = std::size_t{16} << 10;  // at once
/// So much may wait for the front.
constexpr std::size_t unread_by_front_max = std::size_t{128} << 10;
/// So much may wait for the agent.
constexpr std::size_t unread_by_agent_max = std::size_t{4} << 20;

bool is_ready_in(const std::vector<pollfd>& watched, int fd, short what) {
  return std::ranges::any_of(
      watched, [=](const pollfd& each) { return each.fd == fd && (each.revents & (what | POLLHUP | POLLERR)) != 0; });
}

/// Nobody else has ours, so that may be non-blocking.
Result<UniqueFd> open_pipe(UniqueFd& theirs) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error("no pipe for the agent");
  theirs.reset(ends[1]);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return UniqueFd{ends[0]};
}

}  // namespace

// ---- the front

LinkFront::LinkFront() {
  struct stat status {};
  is_socket_ = ::fstat(STDOUT_FILENO, &status) == 0 && S_ISSOCK(status.st_mode);
}

void LinkFront::write(LinkChannel channel, std::string_view bytes) {
  if (!ended_) append_link_frames(output_, channel, bytes);
}

void LinkFront::close() {
  ended_ = true;
  output_.clear();
}

bool LinkFront::is_full() const { return output_.size() >= unread_by_front_max; }

void LinkFront::watch(std::vector<pollfd>& watched) const {
  if (ended_) return;
  watched.push_back({STDIN_FILENO, POLLIN, 0});
  if (waits()) watched.push_back({STDOUT_FILENO, POLLOUT, 0});
}

bool LinkFront::serve(const std::vector<pollfd>& watched, const OnMessage& on_message, const OnAgents& on_agents) {
  if (waits() && is_ready_in(watched, STDOUT_FILENO, POLLOUT)) send_output();
  return !ended_ && is_ready_in(watched, STDIN_FILENO, POLLIN) && read(on_message, on_agents);
}

bool LinkFront::read(const OnMessage& on_message, const OnAgents& on_agents) {
  std::array<char, link_read_bytes> buffer;
  const ssize_t count = ::read(STDIN_FILENO, buffer.data(), buffer.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count <= 0) {
    close();
    return false;
  }
  input_.append(buffer.data(), static_cast<std::size_t>(count));
  look_at_input(on_message, on_agents);
  return true;
}

void LinkFront::look_at_input(const OnMessage& on_message, const OnAgents& on_agents) {
  std::string_view rest = input_;
  for (;;) {
    const auto frame = take_link_frame(rest);
    if (!frame) return close();
    if (!frame->has_value()) break;
    if ((*frame)->channel == LinkChannel::agents) on_agents((*frame)->bytes);
    if ((*frame)->channel != LinkChannel::control) continue;
    control_ += (*frame)->bytes;
    look_at_control(on_message);
    if (ended_) return;
  }
  input_.erase(0, input_.size() - rest.size());
}

void LinkFront::look_at_control(const OnMessage& on_message) {
  std::string_view rest = control_;
  for (;;) {
    auto message = take_front_message(rest);
    if (!message) return close();
    if (!message->has_value()) break;
    on_message(**std::move(message));
  }
  std::string{rest}.swap(control_);
}

/// A pipe that poll calls writable takes PIPE_BUF without blocking.
void LinkFront::send_output() {
  const ssize_t sent = is_socket_
                           ? ::send(STDOUT_FILENO, output_.data(), output_.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                           : ::write(STDOUT_FILENO, output_.data(), std::min<std::size_t>(output_.size(), PIPE_BUF));
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (sent < 0) return close();
  output_.erase(0, static_cast<std::size_t>(sent));
}

// ---- the agent

Result<AgentEnds> AgentStreams::open(const LinkPlan& plan) {
  AgentEnds ends;
  const std::array<std::pair<LinkChannel, UniqueFd*>, 4> pipes{{{LinkChannel::out, &ends.out},
                                                                {LinkChannel::err, &ends.err},
                                                                {LinkChannel::events, &ends.events},
                                                                {LinkChannel::result, &ends.result}}};
  std::size_t next = 0;
  for (const auto& [channel, theirs] : pipes) {
    if (channel == LinkChannel::events && !plan.wants_events) continue;
    if (channel == LinkChannel::result && !plan.wants_result) continue;
    auto ours = open_pipe(*theirs);
    if (!ours) return ours.error();
    streams_.at(next++) = {channel, *std::move(ours)};
  }
  if (!plan.own_coordinator) return ends;
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets.data()) != 0) {
    return system_error("no socket for the agent");
  }
  streams_.at(next) = {LinkChannel::agents, UniqueFd{sockets[0]}};
  ends.connection.reset(sockets[1]);
  return ends;
}

void AgentStreams::forget() {
  for (Stream& stream : streams_) stream.fd.reset();
}

/// The agents' channel has no credit: what agents say is little.
bool AgentStreams::may_read(const Stream& stream, const LinkFront& front) const {
  if (!stream.fd) return false;
  if (deaf_) return true;
  if (front.is_full()) return false;
  return stream.channel == LinkChannel::agents || credit_ > 0;
}

void AgentStreams::watch(std::vector<pollfd>& watched, const LinkFront& front) const {
  for (const Stream& stream : streams_) {
    const bool writes = stream.channel == LinkChannel::agents && stream.fd && !for_agent_.empty();
    const short what = static_cast<short>((may_read(stream, front) ? POLLIN : 0) | (writes ? POLLOUT : 0));
    if (what != 0) watched.push_back({stream.fd.get(), what, 0});
  }
}

void AgentStreams::serve(const std::vector<pollfd>& watched, LinkFront& front) {
  for (Stream& stream : streams_) {
    if (!stream.fd) continue;
    const bool is_agents = stream.channel == LinkChannel::agents;
    if (is_agents && !for_agent_.empty() && is_ready_in(watched, stream.fd.get(), POLLOUT)) send();
    const bool due = is_ready_in(watched, stream.fd.get(), POLLIN) || agent_ended_;
    if (due && may_read(stream, front)) read(stream, front);
  }
}

void AgentStreams::read(Stream& stream, LinkFront& front) {
  std::array<char, link_read_bytes> buffer;
  const bool counted = stream.channel != LinkChannel::agents && !deaf_;
  const std::size_t most = counted ? std::min(credit_, buffer.size()) : buffer.size();
  const ssize_t count = ::read(stream.fd.get(), buffer.data(), most);
  if (count < 0 && errno == EINTR) return;
  if (count < 0 && errno == EAGAIN && !agent_ended_) return;
  if (count <= 0) return stream.fd.reset();
  if (deaf_) return;
  if (counted) credit_ -= static_cast<std::size_t>(count);
  front.write(stream.channel, {buffer.data(), static_cast<std::size_t>(count)});
}

/// An end of file, and no reset: that is what closing would be where something lies unread.
void AgentStreams::deafen() {
  deaf_ = true;
  for_agent_.clear();
  for (const Stream& stream : streams_) {
    if (stream.fd && stream.channel == LinkChannel::agents) ::shutdown(stream.fd.get(), SHUT_RDWR);
  }
}

void AgentStreams::to_agent(std::string_view bytes) {
  for_agent_ += bytes;
  send();
  overflowed_ = overflowed_ || for_agent_.size() > unread_by_agent_max;
}

void AgentStreams::send() {
  const auto found =
      std::ranges::find_if(streams_, [](const Stream& each) { return each.fd && each.channel == LinkChannel::agents; });
  if (found == streams_.end()) return for_agent_.clear();
  const ssize_t sent = ::send(found->fd.get(), for_agent_.data(), for_agent_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) for_agent_.erase(0, static_cast<std::size_t>(sent));
  if (sent < 0 && errno != EAGAIN && errno != EINTR) for_agent_.clear();  // it says by its own end that it has ended
}

bool AgentStreams::drained() const {
  return std::ranges::none_of(streams_, [](const Stream& each) { return static_cast<bool>(each.fd); });
}

}  // namespace torchup
