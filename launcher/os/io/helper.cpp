#include "launcher/os/io/helper.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/system/errc.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <span>

#include "launcher/os/io/child_end.hpp"
#include "launcher/os/io/fresh_process.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {
namespace {

/// How long a killed helper may take to go.
constexpr Duration helper_kill_limit = std::chrono::seconds{1};
constexpr std::int64_t helper_poll_ms_max = 60'000;

int helper_milliseconds(TimePoint until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, helper_poll_ms_max));
}

/// Whether one of them is readable by then.
bool readable_by(std::span<pollfd> places, TimePoint until) {
  for (;;) {
    const int left = helper_milliseconds(until);
    const int ready = ::poll(places.data(), places.size(), left);
    if (ready > 0) return true;
    if (ready == 0 && std::chrono::steady_clock::now() >= until) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

/// Its end, or as much as we take.
Result<std::string> answer_of_helper(const Helper& helper, int out) {
  const TimePoint until = std::chrono::steady_clock::now() + helper.limit;
  std::string text;
  std::array<char, 4096> part{};
  while (text.size() < helper.answer_bytes_max) {
    std::array<pollfd, 2> places{pollfd{out, POLLIN, 0}, pollfd{helper.cancelled, POLLIN, 0}};
    if (!readable_by({places.data(), helper.cancelled < 0 ? std::size_t{1} : std::size_t{2}}, until)) {
      return Error{make_error_code(boost::system::errc::timed_out), "no answer in time"};
    }
    if (places[1].revents != 0) {
      return Error{make_error_code(boost::system::errc::operation_canceled), "nobody wants the answer any more"};
    }
    const ssize_t size = ::read(out, part.data(), std::min(part.size(), helper.answer_bytes_max - text.size()));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(size));
  }
  return text;
}

}  // namespace

Result<std::string> ask_helper(const Helper& helper) {
  const std::string what = fmt::format("no helper {}", helper.executable);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return system_error(what);
  const UniqueFd out{ends[0]};
  UniqueFd its_own{ends[1]};
  FreshProcess process;
  process.executable = helper.executable;
  process.arguments = helper.arguments;
  process.arguments.insert(process.arguments.begin(), helper.executable);
  process.out = its_own.get();
  const auto pid = start_fresh(process);
  if (!pid) return Error{pid.error().code, what};
  its_own.reset();  // only the helper holds one
  const auto end = watch_child(*pid);
  if (!end) {
    ::kill(-*pid, SIGKILL);
    reap_if_ended(*pid, -1);
    return Error{end.error().code, what};
  }
  auto answer = answer_of_helper(helper, out.get());
  pollfd ended{end->get(), POLLIN, 0};
  if (helper.farewell > Duration{0}) {
    ::kill(*pid, SIGTERM);
    static_cast<void>(readable_by({&ended, 1}, std::chrono::steady_clock::now() + helper.farewell));
  }
  ::kill(-*pid, SIGKILL);
  if (readable_by({&ended, 1}, std::chrono::steady_clock::now() + helper_kill_limit)) reap_if_ended(*pid, end->get());
  return answer;
}

}  // namespace torchup
