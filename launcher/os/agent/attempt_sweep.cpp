#include "launcher/os/agent/attempt_sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <utility>

#include "launcher/core/text/text.hpp"
#include "launcher/os/machine/descendants.hpp"
#include "launcher/os/output/evidence.hpp"

namespace torchup {
namespace {

/// How often a sweep looks again when no child's end wakes it.
constexpr Duration sweep_interval = std::chrono::milliseconds{20};
/// How often it asks the cgroup, which a reaped process may leave a moment later.
constexpr Duration cgroup_interval = std::chrono::milliseconds{1};
/// How long after the grace a sweep goes on; only the kernel can keep a process longer.
constexpr Duration sweep_limit = std::chrono::seconds{10};
/// Who waits for longer than this is told what for.
constexpr Duration silence_max = std::chrono::seconds{2};
/// Processes that one line names.
constexpr std::size_t named_max = 8;

/// "process 12 (S), process 14 (D, nfs_wait) and 3 more"
std::string names_of(const std::vector<pid_t>& pids) {
  std::vector<std::string> names;
  for (const pid_t pid : pids) {
    if (names.size() < named_max) names.push_back(fmt::format("process {} ({})", pid, process_state(pid)));
  }
  const std::string more = pids.size() > named_max ? fmt::format(" and {} more", pids.size() - named_max) : "";
  return fmt::format("{}{}", fmt::join(names, ", "), more);
}

}  // namespace

AttemptSweep::AttemptSweep(asio::io_context& loop, std::string cgroup_tag, Tell tell, std::function<void()> gone)
    : loop_{loop}, tag_{std::move(cgroup_tag)}, tell_{std::move(tell)}, gone_{std::move(gone)}, timer_{loop} {}

void AttemptSweep::make_cgroup() {
  if (!cgroup_) cgroup_ = AttemptCgroup::make(tag_, attempts_begun_++);
}

void AttemptSweep::begin(Duration patience, Duration grace) {
  const TimePoint patient_until = std::chrono::steady_clock::now() + patience;
  const TimePoint kill_at = patient_until + grace;
  if (sweeping_) {
    patient_until_ = std::min(patient_until_, patient_until);
    kill_at_ = std::min(kill_at_, kill_at);
  } else {
    sweeping_ = true;
    signalled_ = told_ = false;
    tell_at_ = std::chrono::steady_clock::now() + silence_max;
    patient_until_ = patient_until;
    kill_at_ = kill_at;
  }
  go_on();
}

void AttemptSweep::child_ended() {
  reap_orphans();
  go_on();
}

bool AttemptSweep::all_gone(TimePoint now) {
  only_cgroup_ = !has_children();
  if (now >= kill_at_ + sweep_limit) {
    tell_of_those_left();
    return true;
  }
  return only_cgroup_ && (!cgroup_ || (cgroup_->empty() && cgroup_->remove()));
}

void AttemptSweep::go_on() {
  if (!sweeping_) return;
  reap_orphans();
  const TimePoint now = std::chrono::steady_clock::now();
  if (all_gone(now)) {
    sweeping_ = false;
    timer_.cancel();
    cgroup_.reset();
    return gone_();
  }
  if (now >= kill_at_) {
    if (cgroup_) cgroup_->kill();
    kill_descendants_once();
  } else if (now >= patient_until_ && !std::exchange(signalled_, true)) {
    signal_descendants();
  }
  if (now >= tell_at_ && !std::exchange(told_, true)) tell_of_waiting(now);
  timer_.expires_after(only_cgroup_ ? cgroup_interval : sweep_interval);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) go_on();
  });
}

void AttemptSweep::signal_descendants() {
  for (const pid_t pid : descendants()) {
    ::kill(pid, SIGTERM);
    ::kill(pid, SIGCONT);
  }
}

void AttemptSweep::tell_of_waiting(TimePoint now) {
  const auto left = descendants();
  if (left.empty()) return;
  const std::string end = now < kill_at_ ? fmt::format("they get SIGKILL in {}", seconds_text(kill_at_ - now))
                                         : std::string{"not even SIGKILL has ended them"};
  tell_(LogLevel::warning, fmt::format("waiting for what the workers have left behind: {}; {}", names_of(left), end));
}

void AttemptSweep::tell_of_those_left() {
  if (const auto left = descendants(); !left.empty()) {
    tell_(LogLevel::error,
          fmt::format("not even SIGKILL ends what the workers have left behind: {}; going on without", names_of(left)));
  }
}

void AttemptSweep::end_everything() {
  if (cgroup_) cgroup_->kill();
  static_cast<void>(kill_descendants(sweep_limit));
  if (cgroup_) cgroup_->remove_waiting();
}

}  // namespace torchup
