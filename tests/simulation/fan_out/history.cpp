#include "tests/simulation/fan_out/history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

namespace torchup::simulation {
namespace {

constexpr TimePoint at(Duration time) { return TimePoint{} + time; }
constexpr Duration faults_end = 40s, longest_cut = 60s;
constexpr Duration join_timeout = 60s;
/// Links that were cut are lost or whole again, and hosts that said nothing were given up.
constexpr Duration work_ends = faults_end + longest_cut;
constexpr Duration end = work_ends + join_timeout + 60s;

}  // namespace

FanOutHistory::FanOutHistory(std::uint64_t seed, FanOutMutation mutation, bool verbose)
    : world_{seed, verbose}, truth_{world_}, around_{world_, truth_, {}, mutation}, quiet_{world_.one_in(10)} {
  choose_hosts();
}

void FanOutHistory::choose_hosts() {
  const int count = world_.one_in(40) ? world_.pick(fan_out_starts_max, 2 * fan_out_starts_max + 6) : world_.pick(1, 6);
  settings_.discovers = world_.one_in(3);
  settings_.min_nodes = settings_.discovers ? 1 : world_.pick(1, count);
  settings_.version = std::string{here_version};
  settings_.cooldown_min = 2s;
  settings_.cooldown_max = 10s;
  settings_.join_timeout = join_timeout;
  settings_.end_signals = {SIGINT, SIGQUIT, SIGTERM, SIGHUP};
  settings_.end_told = 5s;
  settings_.end_limit = around_.mutation == FanOutMutation::no_urging ? Duration{1h} : Duration{20s};
  for (int index = 0; index < count; ++index) {
    const std::string name = fmt::format("h{}", index);
    settings_.hosts.push_back({.name = name});
    if (!quiet_ && world_.one_in(8)) natures_[name] = static_cast<Nature>(world_.pick(1, natures - 1));
  }
  around_.terms = {.min_nodes = settings_.min_nodes,
                   .max_nodes = settings_.discovers ? 1024 : world_.pick(settings_.min_nodes, count),
                   .max_restarts = world_.pick(0, 3),
                   .join_timeout = join_timeout,
                   .last_call = 2s};
  around_.workers_may_fail = !quiet_;
}

void FanOutHistory::run() {
  world_.say(fmt::format("{} hosts, {}:{}{}", settings_.hosts.size(), around_.terms.min_nodes, around_.terms.max_nodes,
                         settings_.discovers ? ", discovered" : ""));
  front_ = std::make_unique<Front>(around_, settings_,
                                   [this](const fan::Start& one, WirePtr wire, SimulatedHost::Ears ears) {
                                     return start(one, std::move(wire), std::move(ears));
                                   });
  front_->begin();
  if (!quiet_) {
    for (int planned = world_.pick(1, 6); planned > 0; --planned) plan_fault();
  }
  world_.at(at(quiet_ ? 10s : work_ends), [this] {
    around_.workers_may_fail = false;
    around_.workers_may_finish = true;
  });
  world_.run(at(end));
  check_end();
}

FanOutHistory::Deeds FanOutHistory::deeds() const {
  return {truth_.starts(), truth_.rounds(), faults_, front_->exit_code() == 0};
}

SimulatedHost* FanOutHistory::start(const fan::Start& start, WirePtr wire, SimulatedHost::Ears ears) {
  const Nature how = nature(start.host.name);
  world_.say(
      fmt::format("link {}: {} is started, nature {}", start.link.value(), start.host.name, static_cast<int>(how)));
  hosts_.push_back(
      std::make_unique<SimulatedHost>(around_, start.link, start.host.name, how, std::move(wire), std::move(ears)));
  hosts_.back()->begin();
  return hosts_.back().get();
}

/// One that is tried again may do better, or worse.
Nature FanOutHistory::nature(const std::string& host) {
  const auto found = natures_.find(host);
  const Nature now = found == natures_.end() ? Nature::good : found->second;
  if (settings_.discovers && !quiet_) {
    natures_[host] = world_.one_in(3) ? static_cast<Nature>(world_.pick(0, natures - 1)) : Nature::good;
  }
  return now;
}

// ---- faults

void FanOutHistory::plan_fault() {
  world_.at(at(world_.milliseconds(0, static_cast<int>(faults_end / 1ms))), [this, kind = world_.pick(0, 11)] {
    if (!front_->alive()) return;
    ++faults_;
    fault(kind);
  });
}

void FanOutHistory::fault(int kind) {
  SimulatedHost* const host = any_host();
  switch (kind) {
    case 0:
      truth_.front_hindered(true);
      return front_->kill();
    case 1:
      front_->stop();
      truth_.front_hindered(true);
      return world_.after(world_.milliseconds(100, 40'000), [this, number = ++front_stops_] {
        front_->go_on();
        // What came meanwhile it hears only now.
        world_.after(link_silence_max + 2s, [this, number] {
          if (number == front_stops_) truth_.front_hindered(!front_->alive());
        });
      });
    case 2: {
      const int numbers[] = {SIGINT, SIGTERM, SIGUSR1, SIGQUIT};
      return front_->signal(numbers[world_.pick(0, 3)]);
    }
    case 3:
    case 4:
      return settings_.discovers ? change_list() : front_->kill_a_client();
    default:
      break;
  }
  if (!host) return front_->kill_a_client();
  switch (kind) {
    case 5:
    case 6:
      return host->kill();
    case 7:
      return host->kill_agent();
    case 8:
      host->stop();
      return world_.after(world_.milliseconds(100, 14'000), [host] { host->go_on(); });
    default:
      host->cut();
      return world_.after(world_.one_in(2) ? longest_cut : world_.milliseconds(100, 20'000), [host] { host->heal(); });
  }
}

void FanOutHistory::change_list() {
  std::vector<Host> hosts;
  for (int index = 0; index < 8; ++index) {
    if (!world_.one_in(3)) hosts.push_back({.name = fmt::format("h{}", index)});
  }
  world_.say(fmt::format("{} hosts are listed", hosts.size()));
  if (!hosts.empty()) front_->list(std::move(hosts));  // an empty list is none
}

SimulatedHost* FanOutHistory::any_host() {
  std::vector<SimulatedHost*> living;
  for (const auto& host : hosts_) {
    if (host->alive()) living.push_back(host.get());
  }
  return living.empty() ? nullptr
                        : living[static_cast<std::size_t>(world_.pick(0, static_cast<int>(std::ssize(living)) - 1))];
}

// ---- what must hold in the end

void FanOutHistory::check_end() {
  world_.promise(front_->exit_code() || !front_->alive(), "the front has not ended");
  world_.promise(!truth_.any_works(), "workers still run");
  for (const auto& host : hosts_) {
    if (host->alive()) world_.broken(host->name() + " still lives at the end");
  }
  if (!quiet_) return;
  world_.promise(front_->exit_code() == 0, "a job that nothing befell has failed");
  world_.promise(truth_.starts() == settings_.hosts.size(), "not every host was started once");
}

}  // namespace torchup::simulation
