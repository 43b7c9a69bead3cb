#include "history.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/core/membership/seating.hpp"

namespace torchup::simulation {
namespace {

constexpr Duration faults_end = 30s;
/// A coordinator that starts again waits for long; then a join, a round and its workers take a moment.
constexpr Duration failures_end = faults_end + return_limit_default + 12s;
constexpr Duration settled = failures_end + 8s;
constexpr Duration join_timeout = 60s;
constexpr Duration end = settled + join_timeout + 40s;
constexpr Duration longest_fault = 14s, long_fault = 5s;
constexpr int nodes_max = 8, latecomers_max = 6;

JobTerms chosen_terms(World& world) {
  JobTerms terms;
  terms.min_nodes = world.pick(1, 4);
  terms.max_nodes = terms.min_nodes + world.pick(0, 4);
  if (terms.min_nodes % 2 == 0 && world.one_in(5)) terms.nodes_multiple_of = 2;
  terms.max_restarts = world.pick(0, 3);
  terms.join_timeout = join_timeout;
  terms.last_call = 2s;
  terms.lease = 2s;
  return terms;
}

}  // namespace

History::History(std::uint64_t seed, Mutation mutation, bool forgetful, bool verbose)
    : world_{seed, verbose}, mutation_{mutation}, terms_{chosen_terms(world_)}, network_{world_, terms_.lease + 2s},
      promises_{world_, terms_} {
  const bool keeps_state = !world_.one_in(3) || !forgetful;
  coordinator_ = std::make_unique<Coordinator>(world_, network_, promises_, rate(), keeps_state, mutation);
  const int nodes = std::min(nodes_max, terms_.max_nodes + world_.pick(0, 1));
  workers_.reserve(64);
  for (int node = 0; node < nodes; ++node) start_agent(fmt::format("host{}", node), at(world_.milliseconds(0, 3000)));
  for (int fault = world_.pick(0, 7); fault > 0; --fault) plan_node_fault();
  if (world_.one_in(2)) {
    for (int fault = world_.pick(1, 2); fault > 0; --fault) plan_coordinator_fault();
  }
  if (world_.one_in(2)) {
    for (int order = world_.pick(1, 5); order > 0; --order) plan_order();
  }
  world_.at(at(faults_end), [this] { calm(); });
  world_.at(at(failures_end), [this] { workers_may_fail_ = false; });
  world_.at(at(settled), [this] {
    check_settled();
    workers_may_finish_ = true;
  });
}

double History::rate() { return 1.0 + world_.pick(-100, 100) / 10'000.0; }

void History::run() {
  world_.run(at(end));
  check_end();
}

History::Deeds History::deeds() const {
  Deeds deeds = deeds_;
  deeds.rounds = promises_.rounds();
  deeds.restarts = promises_.restarts();
  return deeds;
}

void History::start_agent(const std::string& host, TimePoint when) {
  const std::size_t index = agents_.size();
  network_.add_node();
  workers_.emplace_back();
  const Agent::Surroundings around{world_, network_,          *coordinator_,       promises_, workers_,
                                   terms_, workers_may_fail_, workers_may_finish_, mutation_};
  agents_.push_back(std::make_unique<Agent>(around, index, host, lives_[host]++, rate()));
  world_.at(when, [this, index] { agents_[index]->begin(); });
}

// ---- faults

void History::plan_node_fault() {
  const int kind = world_.pick(0, 12);
  const std::size_t index = static_cast<std::size_t>(world_.pick(0, static_cast<int>(agents_.size()) - 1));
  const Duration lasts =
      world_.milliseconds(10, static_cast<int>((world_.one_in(4) ? longest_fault : long_fault) / 1ms));
  const TimePoint when = at(world_.milliseconds(3000, static_cast<int>((faults_end - longest_fault - 1s) / 1ms)));
  world_.at(when, [this, kind, index, lasts] { node_fault(kind, index, lasts); });
}

void History::fault_of(std::size_t index, Duration lasts) {
  ++deeds_.node_faults;
  promises_.node_fault();
  workers_[index].hindered_until = std::max(workers_[index].hindered_until, world_.now() + lasts);
}

void History::impair(std::size_t index, Network::Way way, Duration lasts) {
  const char* const words[] = {"passes", "drops", "rejects"};
  world_.say(fmt::format("{}: its way up {}, its way down {}", agents_[index]->host(), words[static_cast<int>(way.up)],
                         words[static_cast<int>(way.down)]));
  fault_of(index, lasts + 3s);
  network_.set(index, way);
  world_.after(lasts, [this, index] {
    world_.say(agents_[index]->host() + ": its ways are mended");
    network_.set(index, {});
    promises_.node_fault();
  });
}

/// When an agent that knows nothing of the time before now has heard of it from the coordinator.
TimePoint History::knows_by() const {
  const bool there = coordinator_back_ <= world_.now();
  return there ? world_.now() + terms_.lease : coordinator_back_ + redial_limit + terms_.lease;
}

/// A machine that is suspended, or moved to another: it does nothing, and its clock says that no time has passed.
void History::suspend(std::size_t index, Duration lasts) {
  fault_of(index, lasts);
  agents_[index]->stop();
  world_.after(lasts, [this, index, lasts, stops = agents_[index]->stops()] {
    promises_.node_fault();
    Agent& agent = *agents_[index];
    // Another fault's end may have woken it before: then its clock would go back by time in which it was awake.
    if (!agent.stopped() || agent.stops() != stops) return;
    const Duration lease = terms_.lease;
    workers_[index].unaware_until = knows_by();
    agent.skip_clock(-lasts);
    agent.go_on();
    world_.after(lease + 1ms, [this] { promises_.woke(workers_); });
  });
}

void History::node_fault(int kind, std::size_t index, Duration lasts) {
  Agent& agent = *agents_[index];
  if (!agent.alive() || agent.over()) return;
  using enum Passage;
  switch (kind) {
    case 0: {
      fault_of(index, 0s);
      agent.kill();
      if (world_.pick(0, 3) > 0) start_agent(agent.host(), world_.now() + lasts);
      return;
    }
    case 1:
      fault_of(index, lasts);
      agent.stop();
      return world_.after(lasts, [this, index] {
        promises_.node_fault();
        agents_[index]->go_on();
      });
    case 2:
      return impair(index, {dropped, dropped}, lasts);
    case 3:
      return impair(index, {dropped, through}, lasts);
    case 4:
      return impair(index, {through, dropped}, lasts);
    case 5:
      return impair(index, {rejected, through}, lasts);
    case 6:
      return impair(index, {through, rejected}, lasts);
    case 7:
      return impair(index, {rejected, rejected}, lasts);
    case 8:
      fault_of(index, 3s);
      return agent.break_connection(world_.one_in(2), true);
    case 9:
      fault_of(index, 3s);
      agent.break_connection(true, false);
      if (world_.one_in(2)) agent.skip_clock(lasts);
      return;
    case 10:
      return suspend(index, lasts);
    case 11:
      if (!world_.one_in(2)) return;
      fault_of(index, 0s);
      return agent.leave();
    default:
      if (lives_.size() >= nodes_max + latecomers_max) return;
      world_.say("a further node comes");
      promises_.node_fault();
      start_agent(fmt::format("new{}", agents_.size()), world_.now());
  }
}

void History::plan_coordinator_fault() {
  const Duration lasts = world_.milliseconds(1, 5000);
  const TimePoint when = at(world_.milliseconds(0, static_cast<int>((faults_end - longest_fault - 1s) / 1ms)));
  const bool stops = world_.one_in(3);
  world_.at(when, [this, lasts, stops] {
    if (!coordinator_->rendezvous() || coordinator_->process()->stopped()) return;
    ++deeds_.coordinator_faults;
    promises_.node_fault();
    if (stops) {
      world_.say("the coordinator is stopped");
      return coordinator_->pause(lasts);
    }
    world_.say("the coordinator is killed");
    coordinator_->kill();
    coordinator_back_ = world_.now() + lasts;
    for (Workers& each : workers_) {
      if (each.unaware_until > world_.now()) each.unaware_until = knows_by();
    }
    world_.after(lasts, [this] {
      world_.say("the coordinator starts again");
      coordinator_->start();
    });
  });
}

void History::plan_order() {
  const int kind = world_.pick(0, 12);
  const std::size_t index = static_cast<std::size_t>(world_.pick(0, static_cast<int>(agents_.size()) - 1));
  world_.at(at(world_.milliseconds(3000, static_cast<int>(faults_end / 1ms))),
            [this, kind, index] { give_order(kind, index); });
}

void History::give_order(int kind, std::size_t index) {
  const std::string& host = agents_[index]->host();
  const int least = world_.pick(1, terms_.max_nodes);
  Order order = order::Restart{};
  if (kind >= 4) order = order::Drain{host};
  if (kind >= 7) order = order::Undrain{host};
  if (kind >= 9) order = order::Resize{least, least + world_.pick(0, 3)};
  if (kind == 12) order = order::Stop{.save = world_.one_in(2)};
  if (!coordinator_->order(order)) return;
  ++deeds_.orders;
  promises_.node_fault();
  // Ranks agree on the step after which they save: one node may be done before the order has come to it.
  const bool stops = coordinator_->rendezvous()->members().stopping() > 0;
  if (stops && world_.one_in(2)) agents_[index]->save_and_end();
}

void History::calm() {
  for (std::size_t index = 0; index < agents_.size(); ++index) {
    agents_[index]->go_on();
    network_.set(index, {});
  }
}

// ---- what must hold in the end

void History::check_settled() {
  const Rendezvous& rendezvous = *coordinator_->rendezvous();
  if (rendezvous.verdict()) return;
  int live = 0;
  for (const auto& agent : agents_) {
    live += agent->alive() && !agent->over() && !agent->left() && !coordinator_->is_drained(agent->name());
  }
  const int size = round_size(promises_.range(), terms_.nodes_multiple_of, live);
  if (size == 0) return;
  if (rendezvous.phase() != Rendezvous::Phase::running) {
    world_.broken(fmt::format("{} nodes are there and no round runs: phase {}, {}", live,
                              static_cast<int>(rendezvous.phase()), coordinator_->roster()));
  }
  const auto working = std::count_if(workers_.begin(), workers_.end(),
                                     [](const Workers& one) { return one.place && one.agent->alive(); });
  if (promises_.has_forgotten_orders()) return;
  if (working < promises_.range().min_nodes || working > size) {
    world_.broken(fmt::format("workers run on {} nodes, of {} in a round", working, size));
  }
}

void History::check_end() {
  for (const auto& agent : agents_) {
    if (!agent->alive()) continue;
    // Who was silent for five seconds after accepting a connection may be another program, as far as it knows.
    if (agent->lost() && !agent->welcomed()) continue;
    if (agent->lost()) world_.broken(agent->host() + " gave up: " + agent->lost()->reason);
    if (!agent->over()) world_.broken(agent->host() + " still waits: " + coordinator_->roster());
    if (agent->left() && agent->verdict()->exit_code == 143) continue;  // its own
    if (agent->saved() && agent->verdict()->exit_code == 75) continue;
    world_.promise(promises_.was_decided(*agent->verdict()), "two verdicts");
  }
}

}  // namespace torchup::simulation
