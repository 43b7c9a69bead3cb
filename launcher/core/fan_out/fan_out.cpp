#include "launcher/core/fan_out/fan_out.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "launcher/core/text/signals.hpp"
#include "rendezvous/core/text/printable.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// How long agents may take to hear from the coordinator that the job is over, before they get a signal.
constexpr Duration insist_after = std::chrono::seconds{5};

bool is_in(const std::vector<int>& list, int number) { return std::ranges::find(list, number) != list.end(); }

/// By these an agent tells of its own node; by any other one of the job, where it knows more than we do.
bool is_of_node(int code) {
  return code == exit_code::refused || code == exit_code::unfit || code == exit_code::unreachable ||
         code == exit_code::mismatch || code == exit_code::internal || code == shell_code(SIGKILL);
}

}  // namespace

FanOut::FanOut(FanOutSettings settings) : settings_{std::move(settings)} {
  for (const Host& host : settings_.hosts) add(host);
}

std::vector<fan::Action> FanOut::step(const fan::Event& event, TimePoint now) {
  if (finished_) return {};
  std::visit([&](const auto& happened) { on(happened, now); }, event);
  due(now);
  start_some(now);
  foretell();
  finish_if_over();
  return std::exchange(actions_, {});
}

std::optional<TimePoint> FanOut::deadline() const {
  if (finished_) return std::nullopt;
  std::optional<TimePoint> first;
  const auto consider = [&first](TimePoint at) { first = std::min(first.value_or(at), at); };
  for (const Entry& entry : entries_) {
    if (entry.state == State::starting) consider(entry.since + hello_patience);
    if (entry.state == State::cooling && !ending_) consider(entry.since + entry.cooldown);
    if (const auto at = urged_next(entry)) consider(*at);
  }
  if (insist_at_) consider(*insist_at_);
  if (deserted_since_ && !ending_) consider(*deserted_since_ + settings_.join_timeout);
  return first;
}

void FanOut::add(const Host& host) {
  entries_.push_back({.host = host, .node = next_node_++, .cooldown = settings_.cooldown_min});
}

FanOut::Entry* FanOut::find(HostLink link) {
  const auto found =
      std::ranges::find_if(entries_, [link](const Entry& entry) { return is_open(entry.state) && entry.link == link; });
  return found == entries_.end() ? nullptr : &*found;
}

int FanOut::count(State state) const { return static_cast<int>(std::ranges::count(entries_, state, &Entry::state)); }
/// One that is not wanted any more too, as long as its workers save.
bool FanOut::works(const Entry& entry) {
  return entry.state == State::linked || (entry.state == State::leaving && entry.drained);
}
int FanOut::candidates() const { return count(State::waiting) + count(State::starting) + count(State::linked); }

// ---- events

void FanOut::on(const fan::Begin&, TimePoint now) {
  if (settings_.discovers) deserted_since_ = now;
}

void FanOut::on(const fan::HelloCame& event, TimePoint now) {
  Entry* const entry = find(event.link);
  if (!entry || entry->state != State::starting) return;
  if (event.hello.version != settings_.version) {
    close(*entry);
    return fail(*entry, exit_code::mismatch,
                fmt::format("torchup {} is there and {} here; --remote-torchup names another",
                            printable_start(event.hello.version), settings_.version),
                now);
  }
  enter(*entry, State::linked, now);
  deserted_since_.reset();
}

void FanOut::on(const fan::RefusalCame& event, TimePoint now) {
  Entry* const entry = find(event.link);
  if (!entry) return;
  close(*entry);
  if (entry->state == State::leaving) return left(*entry, now);
  fail(*entry, event.refusal.code == 0 ? exit_code::failed : event.refusal.code,
       printable_start(event.refusal.text, 4096), now);
}

void FanOut::on(const fan::EndCame& event, TimePoint now) {
  Entry* const entry = find(event.link);
  if (!entry) return;
  // Before the verdict an agent ends by itself only where its node was unfit, or told to leave by somebody there.
  // Where the coordinator is elsewhere it may be the verdict that has ended it.
  const bool alone = !code_ && !signalled_ && (settings_.own_coordinator || is_of_node(event.exit_code));
  close(*entry, alone);
  if (entry->state == State::leaving) return left(*entry, now);
  if (alone) {
    if (settings_.own_coordinator && event.exit_code == exit_code::unreachable) {
      return fail(*entry, exit_code::too_few, "its agent has lost the way here", now);
    }
    const int code = event.exit_code == 0 ? exit_code::failed : event.exit_code;
    return fail(*entry, code, fmt::format("its agent ended with {}", event.exit_code), now);
  }
  if (!ended_ || event.exit_code != shell_code(SIGKILL)) ended_ = event.exit_code;
  enter(*entry, State::over, now);
}

/// It has left as it was told to. Meanwhile it may be wanted again.
void FanOut::left(Entry& entry, TimePoint now) { enter(entry, entry.wanted ? State::waiting : State::over, now); }

void FanOut::on(const fan::Broken& event, TimePoint now) {
  Entry* const entry = find(event.link);
  if (!entry) return;
  const bool was_linked = entry->state == State::linked;
  close(*entry);
  if (entry->state == State::leaving) return left(*entry, now);
  if (code_ || signalled_) return enter(*entry, State::over, now);
  fail(*entry, was_linked ? exit_code::too_few : exit_code::unreachable, event.why, now);
}

void FanOut::on(const fan::Listed& event, TimePoint now) {
  if (ending_) return;
  for (Entry& entry : entries_) {
    const auto listed = std::ranges::find(event.hosts, entry.host.name, &Host::name);
    const bool wanted = listed != event.hosts.end();
    if (wanted) entry.host = *listed;
    if (wanted && entry.state == State::over) enter(entry, State::waiting, now);
    if (!wanted && entry.wanted) dismiss(entry, now);
    entry.wanted = wanted;
  }
  for (const Host& host : event.hosts) {
    const bool known = std::ranges::any_of(entries_, [&](const Entry& entry) { return entry.host.name == host.name; });
    if (!known) add(host);
  }
  std::erase_if(entries_, [](const Entry& entry) { return !entry.wanted && !is_open(entry.state); });
}

void FanOut::dismiss(Entry& entry, TimePoint now) {
  if (entry.state == State::leaving) return;  // it was told so before it was wanted for a while
  if (entry.state == State::starting) close(entry);
  if (entry.state != State::linked) return enter(entry, State::over, now);
  act(fan::Say{fan::Say::Level::info, fmt::format("host {} is not listed any more: it leaves", entry.host.name)});
  act(fan::Send{entry.link, LinkSignal{dismissal_signal}});
  enter(entry, State::leaving, now);
  if (!entry.drained) entry.to_end_since = now;  // else its workers may save, and with that the job ends
}

void FanOut::on(const fan::SignalCame& event, TimePoint now) {
  const bool nobody = count(State::linked) + count(State::leaving) == 0;
  const bool listed = is_in(settings_.end_signals, event.number);
  const bool typed = event.number == SIGINT || event.number == SIGQUIT;
  // Agents answer the first SIGQUIT with a page of what all ranks do, and know what else ends a job.
  const bool ends = nobody ? listed || typed : listed && event.number != SIGQUIT;
  // When all agents leave, nobody comes in their place.
  if (ends && !ending_ && settings_.own_coordinator && settings_.discovers) {
    act(fan::Expect{candidates(), {}, "", false});
  }
  send_to_all(event.number);
  if (!ends) return;
  if (!signalled_) signalled_ = event.number;
  ending_ = true;
  close_unlinked();
  if (!is_in(settings_.drain_signals, event.number)) await_ends(now);
}

void FanOut::on(const fan::JobOver& event, TimePoint now) {
  if (code_) return;
  code_ = event.exit_code;
  ending_ = true;
  close_unlinked();
  await_ends(now);  // they have heard it too, and may let their workers save
  act(fan::Expect{0, event.exit_code, "the job is over"});
}

void FanOut::on(const fan::OutputHeld& event, TimePoint now) {
  held_ = event.held;
  if (held_) return;
  for (Entry& entry : entries_) {
    if (entry.to_end_since) entry.to_end_since = now;
  }
}

// ---- what follows

void FanOut::due(TimePoint now) {
  for (Entry& entry : entries_) {
    if (entry.state == State::starting && now >= entry.since + hello_patience) {
      close(entry);
      fail(entry, exit_code::unreachable, "it did not answer within " + seconds(hello_patience), now);
    }
    if (entry.state == State::cooling && !ending_ && now >= entry.since + entry.cooldown) {
      entry.cooldown = std::min(entry.cooldown * 2, settings_.cooldown_max);
      enter(entry, State::waiting, now);
    }
  }
  if (insist_at_ && now >= *insist_at_) {
    insist_at_.reset();
    send_to_all(dismissal_signal);
  }
  urge(now);
  if (!settings_.discovers || ending_) return;
  if (std::ranges::any_of(entries_, works)) return deserted_since_.reset();
  if (!deserted_since_) deserted_since_ = now;
  if (now < *deserted_since_ + settings_.join_timeout) return;
  give_up(exit_code::too_few, "no host is there within the join timeout of " + seconds(settings_.join_timeout), now);
}

void FanOut::start_some(TimePoint now) {
  if (ending_) return;
  int room = fan_out_starts_max - count(State::starting);
  for (Entry& entry : entries_) {
    if (room <= 0) return;
    if (entry.state != State::waiting) continue;
    --room;
    entry.link = HostLink{next_link_++};
    entry.to_end_since.reset();
    entry.urged = Urged::no;
    entry.drained = false;
    enter(entry, State::starting, now);
    act(fan::Start{entry.link, entry.host, entry.node});
  }
}

/// What has happened to a host that nobody has asked to end. Its link is closed.
void FanOut::fail(Entry& entry, int exit_code, const std::string& what, TimePoint now) {
  if (!first_failure_) first_failure_ = exit_code;
  const std::string told = fmt::format("host {}: {}", entry.host.name, what);
  if (settings_.discovers) {
    // A host that has worked for long begins anew; entry.since is still that of its work.
    if (entry.state == State::linked && now - entry.since >= host_forgiven_after)
      entry.cooldown = settings_.cooldown_min;
    enter(entry, State::cooling, now);
    return act(fan::Say{fan::Say::Level::warning, fmt::format("{}; tried again in {}", told, seconds(entry.cooldown))});
  }
  enter(entry, State::over, now);
  const int left = candidates();
  if (left >= settings_.min_nodes) {
    return act(fan::Say{fan::Say::Level::warning, fmt::format("{}; the other {} go on", told, left)});
  }
  std::string reason = told;
  if (entries_.size() > 1) {
    reason +=
        fmt::format("; {} of {} hosts are left, and the job needs {}", left, entries_.size(), settings_.min_nodes);
  }
  give_up(exit_code, std::move(reason), now);
}

void FanOut::give_up(int exit_code, std::string reason, TimePoint now) {
  if (code_) return;
  code_ = exit_code;
  ending_ = true;
  act(fan::Say{fan::Say::Level::error, reason});
  close_unlinked();
  await_ends(now);
  if (!settings_.own_coordinator) return send_to_all(dismissal_signal);
  insist_at_ = now + insist_after;
  act(fan::Expect{0, exit_code, std::move(reason)});
}

void FanOut::await_ends(TimePoint now) {
  for (Entry& entry : entries_) {
    const bool there = entry.state == State::linked || entry.state == State::leaving;
    if (there && !entry.to_end_since) entry.to_end_since = now;
  }
}

/// What is done next where an agent does not end. While our own reader holds its output, it is waited for.
std::optional<TimePoint> FanOut::urged_next(const Entry& entry) const {
  const bool there = entry.state == State::linked || entry.state == State::leaving;
  if (!there || !entry.to_end_since || held_) return std::nullopt;
  switch (entry.urged) {
    case Urged::no:
      return *entry.to_end_since + settings_.end_told;
    case Urged::told:
      return *entry.to_end_since + settings_.end_limit;
    case Urged::killed:
      break;
  }
  return *entry.to_end_since + settings_.end_limit + killed_patience;
}

/// Each step may be due for many at once.
void FanOut::urge(TimePoint now) {
  std::vector<std::string> late, killed, lost;
  for (Entry& entry : entries_) {
    const auto at = urged_next(entry);
    if (!at || now < *at) continue;
    if (entry.urged == Urged::no) {
      entry.urged = Urged::told;
      late.push_back(entry.host.name);
    } else if (entry.urged == Urged::told) {
      entry.urged = Urged::killed;
      act(fan::Send{entry.link, LinkSignal{SIGKILL}});
      killed.push_back(entry.host.name);
    } else {
      close(entry);
      left(entry, now);
      lost.push_back(entry.host.name);
    }
  }
  const auto say = [this](fan::Say::Level level, const char* what, const std::vector<std::string>& hosts) {
    if (!hosts.empty()) act(fan::Say{level, fmt::format("{}: {}", what, join_names(hosts))});
  };
  say(fan::Say::Level::warning, "waiting for agents that have been told to end", late);
  say(fan::Say::Level::warning, "agents that have not ended are killed", killed);
  say(fan::Say::Level::error, "not waited for any longer, and processes of the job may live there", lost);
}

void FanOut::close_unlinked() {
  for (Entry& entry : entries_) {
    if (entry.state == State::starting) close(entry);
    if (!is_open(entry.state) || entry.state == State::starting) entry.state = State::over;
  }
}

void FanOut::close(const Entry& entry, bool alone) {
  act(fan::Close{entry.link, alone || entry.state == State::leaving});
}

void FanOut::send_to_all(int signal) {
  for (Entry& entry : entries_) {
    if (entry.state != State::linked && entry.state != State::leaving) continue;
    act(fan::Send{entry.link, LinkSignal{signal}});
    entry.drained = entry.drained || is_in(settings_.drain_signals, signal);
  }
}

void FanOut::foretell() {
  if (!settings_.own_coordinator || ending_ || foretold_ == candidates()) return;
  foretold_ = candidates();
  act(fan::Expect{foretold_, {}, "", settings_.discovers});
}

void FanOut::finish_if_over() {
  const bool open = std::ranges::any_of(entries_, [](const Entry& entry) { return is_open(entry.state); });
  const bool to_come = !ending_ && ((settings_.discovers && !ended_) || count(State::waiting) > 0);
  if (open || to_come) return;
  finished_ = true;
  const int otherwise = signalled_ ? shell_code(*signalled_) : exit_code::failed;
  act(fan::Finish{code_.value_or(ended_.value_or(first_failure_.value_or(otherwise)))});
}

}  // namespace torchup
