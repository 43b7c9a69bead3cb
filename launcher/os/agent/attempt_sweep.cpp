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
/// How often it looks for processes that have not had SIGTERM: who got it may have left others behind meanwhile.
constexpr Duration signal_interval = std::chrono::milliseconds{100};
/// How often it asks the cgroup, which a reaped process may leave a moment later.
constexpr Duration cgroup_interval = std::chrono::milliseconds{1};
/// How long after the grace a sweep goes on; only the kernel can keep a process longer.
constexpr Duration sweep_limit = std::chrono::seconds{10};
/// How long after the grace it waits for those whom we may not signal: the kernel may end them by their cgroup.
constexpr Duration foreign_limit = std::chrono::seconds{1};
/// Who waits for longer than this is told what for.
constexpr Duration silence_max = std::chrono::seconds{2};
/// Processes that one line names.
constexpr std::size_t named_max = 8;

/// "process 12 (S), process 14 (D, nfs_wait) and 3 more"
std::string names_of(const std::vector<pid_t>& pids) {
  std::vector<std::string> names;
  for (const pid_t pid : pids) {
    if (names.size() == named_max) break;
    const char* const whose = may_signal(pid) ? "" : ", of another user, whom we may not signal";
    names.push_back(fmt::format("process {} ({}{})", pid, process_state(pid), whose));
  }
  const std::string more = pids.size() > named_max ? fmt::format(" and {} more", pids.size() - named_max) : "";
  return fmt::format("{}{}", fmt::join(names, ", "), more);
}

}  // namespace

AttemptSweep::AttemptSweep(asio::io_context& loop, std::string cgroup_tag, Recorder record, std::function<void()> gone)
    : loop_{loop}, tag_{std::move(cgroup_tag)}, record_{std::move(record)}, gone_{std::move(gone)}, timer_{loop} {}

void AttemptSweep::make_cgroup() {
  auto made = std::move(next_cgroup_);
  if (!made && cgroups_.empty()) made = AttemptCgroup::make(tag_, attempts_begun_++);
  if (made) cgroups_.push_back(std::move(made));
}

int AttemptSweep::next_cgroup() {
  if (!next_cgroup_) next_cgroup_ = AttemptCgroup::make(tag_, attempts_begun_++);
  return next_cgroup_ ? next_cgroup_->folder() : -1;
}

void AttemptSweep::discard_next_cgroup() {
  if (next_cgroup_) next_cgroup_->remove_waiting();
}

void AttemptSweep::reap() {
  std::vector<pid_t> known = known_.spared();
  const std::vector<pid_t> workers = known_.workers();
  known.insert(known.end(), workers.begin(), workers.end());
  reap_orphans(known);
}

void AttemptSweep::begin(Duration patience, Duration grace, bool some_stay) {
  some_stay_ = some_stay;
  const TimePoint patient_until = std::chrono::steady_clock::now() + patience;
  const TimePoint kill_at = patient_until + grace;
  if (sweeping_) {
    patient_until_ = std::min(patient_until_, patient_until);
    kill_at_ = std::min(kill_at_, kill_at);
  } else {
    sweeping_ = true;
    forget_who_ended();
    signalled_.clear();
    signal_at_ = {};
    told_ = false;
    tell_at_ = std::chrono::steady_clock::now() + silence_max;
    patient_until_ = patient_until;
    kill_at_ = kill_at;
  }
  go_on();
}

/// A later process may get its number.
void AttemptSweep::forget_who_ended() {
  if (given_up_.empty()) return;
  const auto living = descendants();
  std::erase_if(given_up_, [&](pid_t pid) { return std::ranges::find(living, pid) == living.end(); });
}

void AttemptSweep::child_ended() {
  reap();
  go_on();
}

bool AttemptSweep::all_gone(TimePoint now) {
  if (now >= kill_at_ + sweep_limit) {
    give_up(left());
    return true;
  }
  if (now >= kill_at_ + foreign_limit) {
    auto foreign = left();
    std::erase_if(foreign, may_signal);
    give_up(foreign);
  }
  only_cgroup_ = !has_children(known_.spared()) || (!given_up_.empty() && left().empty());
  if (!only_cgroup_) return false;
  drop_empty_cgroups();
  // One that cannot be ended stays in its cgroup, too.
  return cgroups_.empty() || some_stay_ || !given_up_.empty();
}

void AttemptSweep::drop_empty_cgroups() {
  std::erase_if(cgroups_, [](const auto& each) { return each->empty() && each->remove(); });
}

void AttemptSweep::go_on() {
  if (!sweeping_) return;
  reap();
  const TimePoint now = std::chrono::steady_clock::now();
  if (all_gone(now)) {
    sweeping_ = false;
    timer_.cancel();
    if (!some_stay_) cgroups_.clear();
    return gone_();
  }
  if (now >= kill_at_) {
    if (!some_stay_) kill_cgroup();
    kill_descendants_once(known_.spared());
  } else if (now >= std::max(patient_until_, signal_at_)) {
    signal_at_ = now + signal_interval;
    signal_descendants();
  }
  if (now >= tell_at_ && !std::exchange(told_, true)) tell_of_waiting(now);
  timer_.expires_after(only_cgroup_ ? cgroup_interval : sweep_interval);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) go_on();
  });
}

/// Whoever was told may start others to tidy up: they are its own affair as long as it lives.
void AttemptSweep::signal_descendants() {
  const auto is_told = [this](pid_t pid) { return std::ranges::find(signalled_, pid) != signalled_.end(); };
  std::vector<pid_t> told;
  for (const pid_t pid : left()) {
    if (!is_told(pid)) {
      if (std::ranges::any_of(ancestry(pid), is_told)) continue;
      ::kill(pid, SIGTERM);
      ::kill(pid, SIGCONT);
    }
    told.push_back(pid);
  }
  signalled_ = std::move(told);
}

void AttemptSweep::tell_of_waiting(TimePoint now) {
  const auto waiting = left();
  if (waiting.empty()) return;
  const std::string end = now < kill_at_ ? fmt::format("they get SIGKILL in {}", seconds_text(kill_at_ - now))
                                         : std::string{"not even SIGKILL has ended them"};
  record_(event::Notice{fmt::format("waiting for what the workers have left behind: {}; {}", names_of(waiting), end),
                        LogLevel::warning});
}

void AttemptSweep::give_up(const std::vector<pid_t>& stay) {
  if (stay.empty()) return;
  record_(event::Notice{
      fmt::format("not even SIGKILL ends what the workers have left behind: {}; going on without", names_of(stay)),
      LogLevel::error});
  given_up_.insert(given_up_.end(), stay.begin(), stay.end());
}

void AttemptSweep::kill_cgroup() const {
  for (const auto& each : cgroups_) each->kill();
}

void AttemptSweep::expect_no_end_of(pid_t pid) { given_up_.push_back(pid); }

/// What is waited for.
std::vector<pid_t> AttemptSweep::left() const {
  auto found = descendants(known_.spared());
  std::erase_if(found, [this](pid_t pid) { return is_given_up(pid); });
  return found;
}

bool AttemptSweep::is_given_up(pid_t pid) const { return std::ranges::find(given_up_, pid) != given_up_.end(); }

void AttemptSweep::end_everything() {
  kill_cgroup();
  static_cast<void>(kill_descendants(sweep_limit));
  for (const auto& each : cgroups_) each->remove_waiting();
  discard_next_cgroup();
}

}  // namespace torchup
