#pragma once

#include <map>
#include <set>
#include <string>

#include "launcher/core/fan_out/fan_out.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "tests/simulation/fan_out/wire.hpp"
#include "tests/simulation/world.hpp"

namespace torchup::simulation {

/// A rule that is switched off, to see that the promises do not hold without it.
enum class FanOutMutation {
  none,
  no_lifeline,    ///< a host does not look at how long the front has been silent
  no_kill,        ///< a host whose front is gone asks its agent to end, and no more
  loss_untold,    ///< the coordinator does not hear of links that end
  front_patient,  ///< the front waits for a silent link for ever
  no_fence,       ///< an agent is not told that its front is gone
  no_urging,      ///< the front waits for ever for an agent to end
};
constexpr std::string_view fan_out_mutation_names[] = {"none",          "no-lifeline", "no-kill",  "loss-untold",
                                                       "front-patient", "no-fence",    "no-urging"};

/// From the front's end of a link to the last worker's on the host, where nothing is in the way.
constexpr Duration fenced_within = 100ms;

/// What must hold in every history of a fan-out; is told what is done.
///
/// 1. A round has only hosts whose links stand, and all of them are told of it at once. None is formed once the hosts
/// that
///    have not failed are too few.
/// 2. Workers of two rounds never run at once, but where a host is stopped, or where its link has ended and not by
/// silence:
///    the job goes on at once then, and the host ends them when it sees that, or after the lease where it is cut off
///    too.
/// 3. No host is started while it has a link, nor more than fan_out_starts_max at once; each link is closed once, and
/// all
///    are when the front finishes, which it does once.
/// 4. On a host whose link has ended nothing lives 5 s later, and where it was silent, 20 s later (see SimulatedHost).
/// 5. A link that is silent for 15 s is given up.
/// 6. An agent whose link stands, and was never cut for nearly its lease, does not lose its coordinator.
class Truth {
 public:
  explicit Truth(World& world) : world_{world} {}

  // What the front does.
  void starts(HostLink link, const std::string& host) {
    world_.promise(!finished_, "a host is started after the end");
    world_.promise(!links_.contains(link), "a link has a number twice");
    for (const auto& [other, state] : links_) {
      world_.promise(state.closed || state.host != host, "a host is started while it has a link");
    }
    links_[link] = {.host = host};
    world_.promise(++greetings_awaited_ <= fan_out_starts_max, "too many are started at once");
  }
  void greets(HostLink link) {
    if (!links_.at(link).closed && !std::exchange(links_.at(link).greeted, true)) --greetings_awaited_;
  }
  void closes(HostLink link) {
    State& state = links_.at(link);
    world_.promise(!state.closed, "a link is closed twice");
    state.closed = true;
    state.closed_at = world_.now();
    if (!state.greeted) --greetings_awaited_;
  }
  /// It has said nothing for as long as it may, and the front has had the time to see that.
  void silent(HostLink link) const {
    const State& state = links_.at(link);
    world_.promise(finished_ || front_hindered_ || !state.greeted || state.closed, "a silent link is not given up");
  }
  void front_hindered(bool now) {
    front_hindered_ = now;
    front_was_hindered_ = front_was_hindered_ || now;
  }
  [[nodiscard]] bool front_was_hindered() const { return front_was_hindered_; }
  void finishes() {
    world_.promise(!finished_, "the front finishes twice");
    finished_ = true;
    for (const auto& [link, state] : links_) world_.promise(state.closed, "the front finishes and a link is open");
  }
  /// Of a fixed list: this host will not come (back).
  void fails(HostLink link, int hosts, int min_nodes) {
    failed_.insert(links_.at(link).host);
    if (hosts - static_cast<int>(failed_.size()) < min_nodes) too_few_ = true;
  }

  // What the coordinator does.
  void places(HostLink link, const Placement& place) {
    world_.promise(!links_.at(link).closed, "a lost host has a place in a round");
    world_.promise(!too_few_, "a round forms though too few hosts are left");
    if (round_ != place.round) world_.promise(to_be_told_ == 0, "not all of a round were told of it");
    if (std::exchange(round_, place.round) != place.round) to_be_told_ = place.group_world_size, ++rounds_;
    world_.promise(--to_be_told_ >= 0, "more than a round has were told of it");
  }
  void placed_all() const { world_.promise(to_be_told_ == 0, "not all of a round were told of it"); }

  // What hosts do.
  void workers_start(HostLink link, Round round, const Process& process, const Wire& wire) {
    for (const auto& [other, running] : working_) {
      const State& state = links_.at(other);
      const TimePoint told = std::max(state.closed_at, running.wire->healed_at()) + fenced_within;
      const bool untold = state.closed && (running.wire->is_cut() || world_.now() < told);
      // One that was stopped sees first what its clock says, and then ends them.
      const bool asleep = running.process->stopped() || world_.now() < running.process->awake_since() + 31ms;
      const bool excused = (running.process->stops() > 0 && asleep) || !running.process->alive() || untold;
      if (running.round != round && !excused && other != link) {
        world_.broken(links_.at(other).host + " still has workers of another round when " + links_.at(link).host +
                      " starts");
      }
    }
    working_[link] = {round, &process, &wire};
  }
  void workers_end(HostLink link) { working_.erase(link); }
  [[nodiscard]] bool any_works() const { return !working_.empty(); }

  [[nodiscard]] std::uint64_t rounds() const { return rounds_; }
  [[nodiscard]] std::uint64_t starts() const { return links_.size(); }
  [[nodiscard]] bool finished() const { return finished_; }

 private:
  struct State {
    std::string host;
    bool greeted = false, closed = false;
    TimePoint closed_at{};
  };
  struct Running {
    Round round{0};
    const Process* process = nullptr;
    const Wire* wire = nullptr;
  };
  World& world_;
  std::map<HostLink, State> links_;
  std::map<HostLink, Running> working_;
  std::set<std::string> failed_;
  int greetings_awaited_ = 0;
  Round round_{-1};
  int to_be_told_ = 0;
  bool too_few_ = false, finished_ = false, front_hindered_ = false, front_was_hindered_ = false;
  std::uint64_t rounds_ = 0;
};

}  // namespace torchup::simulation
