#include "launcher/os/worker/parked_process.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <charconv>
#include <csignal>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "launcher/os/io/child_end.hpp"
#include "launcher/os/io/packet.hpp"
#include "launcher/os/machine/process_stat.hpp"

namespace torchup {
namespace {

/// The number behind `word` in `text`; nothing where either is missing.
std::optional<int> number_behind(std::string_view text, std::string_view word) {
  if (!text.starts_with(word)) return std::nullopt;
  text.remove_prefix(word.size());
  int number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = code == std::errc{} && end == text.data() + text.size();
  return whole ? std::optional{number} : std::nullopt;
}

}  // namespace

ParkedProcess::ParkedProcess(asio::io_context& loop, UniqueFd channel, std::uint64_t inode, pid_t maker,
                             std::function<void()> changed)
    : channel_{loop, channel.release()}, inode_{inode}, maker_{maker}, process_{loop}, changed_{std::move(changed)} {
  wait_for_words();
}

void ParkedProcess::tell() {
  const auto changed = changed_;  // it may destroy this, and the other with it
  changed();
}

void ParkedProcess::wait_for_words() {
  channel_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
    if (error) return;
    const bool changed = read();
    if (channel_.is_open() && state_ != State::started) wait_for_words();
    if (changed) tell();
  });
}

void ParkedProcess::tell_soon() {
  asio::post(channel_.get_executor(), [this, alive = std::weak_ptr{alive_}] {
    if (alive.lock()) tell();
  });
}

void ParkedProcess::catch_up() {
  if (channel_.is_open() && read()) tell_soon();
}

bool ParkedProcess::read() {
  const State before = state_;
  while (channel_.is_open() && state_ != State::started) {
    auto packet = receive_packet(channel_.native_handle());
    if (!packet) {
      end();
    } else if (*packet) {
      hear((*packet)->text, (*packet)->sender);
    } else {
      break;
    }
  }
  return state_ != before;
}

void ParkedProcess::hear(const std::string& text, pid_t sender) {
  if (const auto pid = number_behind(text, "forked "); pid && pid_ == 0 && state_ == State::being_made) {
    return has_pid(*pid);
  }
  if (state_ == State::being_made && (text == "parked" || text.starts_with("parked "))) {
    // Of our child nobody else has the pid while it is not reaped.
    const auto stat = process_stat(sender);
    if (pid_ == 0 && stat && stat->parent == ::getpid()) has_pid(sender);
    if (sender != pid_ || !stat || stat->parent != ::getpid()) return end();
    has_parked_ = true;
    if (killed_) return send_kill();
    if (const auto number = number_behind(text, "parked ")) outside_cgroup_ = std::generic_category().message(*number);
    state_ = State::parked;
  } else if (state_ == State::starting && text == "started") {
    state_ = State::started;
  } else if (state_ == State::starting && text.starts_with("refused ")) {
    const std::size_t blank = text.rfind(' ');
    const auto number = number_behind(std::string_view{text}.substr(blank), " ");
    const std::string call = text.substr(8, blank > 8 ? blank - 8 : 0);
    if (!number || (call != "sched_setaffinity" && call != "chdir")) return end();
    refusal_ = system_error(*number, call);
    state_ = State::refused;
  } else {
    end();
  }
}

void ParkedProcess::has_pid(pid_t pid) {
  auto watched = watch_child(pid);
  if (!watched) return;  // it has ended before it could park: its end of the pair says so
  pid_ = pid;
  process_.assign(watched->release());
  process_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
    if (error || state_ == State::started) return;
    // A short program may have come to its end before we knew of its start.
    static_cast<void>(read());
    if (state_ == State::started) return tell();
    // One that ended before it was our child is an orphan as others are, and reaped with them.
    reap_if_ended(pid_, process_.native_handle());
    pid_ = 0;
    if (channel_.is_open()) channel_.close();
    state_ = State::gone;
    tell();
  });
}

/// It has closed its end, or says what makes no sense.
void ParkedProcess::end() {
  channel_.close();
  send_kill();
  // With a pid, it is gone when it is reaped.
  if (pid_ == 0) state_ = State::gone;
}

void ParkedProcess::start(std::span<const int> descriptors) {
  state_ = State::starting;
  if (auto sent = send_packet(channel_.native_handle(), "start", descriptors); !sent) end();
}

ChildProcess ParkedProcess::take() {
  ChildProcess child;
  child.pid = std::exchange(pid_, 0);
  child.pidfd.reset(process_.release());
  child.channel.reset(channel_.release());
  child.outside_cgroup = outside_cgroup_;
  return child;
}

void ParkedProcess::kill() {
  killed_ = true;
  send_kill();
}

/// Its end need not be waited for: like one that is not our child yet it is reaped as an orphan.
void ParkedProcess::abandon() {
  kill();
  channel_.close();
  if (process_.is_open()) process_.close();
  pid_ = 0;
  state_ = State::gone;
  tell_soon();
}

void ParkedProcess::send_kill() {
  // Until it has parked its pid is hearsay: only a child of ours is killed.
  const auto stat = pid_ > 0 ? process_stat(pid_) : std::nullopt;
  if (!stat || stat->parent != ::getpid()) return;
  kill_child(pid_, process_.native_handle());
}

}  // namespace torchup
