#include "agent.hpp"

#include <fmt/format.h>

namespace torchup::simulation {

Agent::Agent(Surroundings around, std::size_t node, std::string host, int life, double rate)
    : around_{around}, world_{around.world}, node_{node}, host_{std::move(host)}, life_{life}, process_{around.world,
                                                                                                        rate} {
  around_.workers[node_].host = host_;
  around_.workers[node_].agent = &process_;
}

void Agent::begin() {
  world_.say(host_ + " starts");
  CoordinatorLinkSettings settings{.endpoint = {"coordinator", Port{1}},
                                   .run_id = RunId{"job"},
                                   .join_timeout = around_.terms.join_timeout,
                                   .seed = static_cast<std::uint64_t>(world_.pick(0, 1 << 30))};
  link_.emplace(std::move(settings), process_.clock());
  process_.on_wake([this] {
    step(link::Wake{});
    return link_->deadline();
  });
  join();
}

// ---- faults

void Agent::kill() {
  world_.say(host_ + " is killed");
  end_workers();
  for (const auto& [line, connection] : connections_) {
    around_.network.close(connection, Connection::agent, !world_.one_in(4));
  }
  connections_.clear();
  process_.kill();
}

void Agent::stop() {
  world_.say(host_ + " is stopped");
  if (around_.mutation == Mutation::unread_first) stopped_at_ = process_.clock();
  process_.stop();
}

void Agent::go_on() {
  if (!alive() || !process_.stopped()) return;
  world_.say(host_ + " goes on");
  // What it sees first is a timer that is over, or what lies unread; both look at the clock before all else.
  if (world_.one_in(2) && !stopped_at_) process_.run([this] { step(link::Wake{}); });
  process_.go_on();
  stopped_at_.reset();
  world_.after(31ms, [this] { around_.promises.woke(around_.workers); });
}

void Agent::leave() {
  if (over()) return;
  world_.say(host_ + " leaves");
  left_ = true;
  process_.run([this] {
    ++workers_number_;
    end_workers();  // they are being stopped, whoever hears of it when
    step(link::Say{Leave{.ends_job = false, .exit_code = 143, .reason = std::string{leave_reason}}});
  });
}

void Agent::save_and_end() {
  if (over() || left_ || saved_ || !alive() || !around_.workers[node_].place) return;
  process_.run([this] {
    if (over() || !around_.workers[node_].place) return;
    world_.say(host_ + ": a worker has saved its state");
    saved_ = true;
    ++workers_number_;
    end_workers();
    step(link::Say{Leave{
        .ends_job = true, .exit_code = 75, .reason = std::string{saved_reason}, .stop_signal = 0, .saved = true}});
  });
}

void Agent::break_connection(bool here, bool there) {
  if (connections_.empty()) return;
  const auto which = std::next(connections_.begin(), world_.pick(0, static_cast<int>(connections_.size()) - 1));
  const ConnectionPtr connection = which->second;
  world_.say(fmt::format("{}: a connection breaks{}{}", host_, here ? " here" : "", there ? " there" : ""));
  if (there) around_.network.break_end(connection, Connection::coordinator);
  if (here) around_.network.break_end(connection, Connection::agent);
}

// ---- the link

void Agent::step(const link::Event& event) {
  const TimePoint now = stopped_at_.value_or(process_.clock());
  for (const link::Action& action : link_->step(event, now)) {
    std::visit([&](const auto& wanted) { perform(wanted); }, action);
  }
  process_.arm(link_->deadline());
}

void Agent::perform(const link::Dial& dial) {
  around_.network.dial(
      node_, process_, [this] { return around_.coordinator.process(); }, dial.limit,
      [this, line = dial.line](ConnectionPtr connection, bool refused) {
        if (!connection) return step(link::DialFailed{line, refused, refused ? "refused" : "no answer"});
        // The coordinator that accepted it may have been killed since.
        if (!connection->processes[Connection::coordinator]->alive()) {
          return step(link::DialFailed{line, false, "reset"});
        }
        connections_.emplace(line, connection);
        const std::weak_ptr<Connection> weak = connection;
        around_.coordinator.accept(connection, [this, line, weak](const CoordinatorFrame& frame) {
          if (!connections_.contains(line)) return;
          welcomed_ = welcomed_ || std::holds_alternative<Welcome>(frame);
          step(link::Heard{line, frame});
        });
        connection->sides[Connection::agent].on_closed = [this, line](bool end_of_file) {
          if (connections_.erase(line) == 0) return;
          const bool proved = end_of_file || around_.mutation == Mutation::reset_proves_end;
          step(link::Closed{line, proved ? "" : "connection reset"});
        };
        step(link::Dialled{line});
      });
}

void Agent::perform(const link::Write& write) {
  const auto found = connections_.find(write.line);
  if (found == connections_.end()) return;
  const ConnectionPtr connection = found->second;
  around_.network.send(connection, Connection::agent,
                       [this, connection, frame = write.frame] { around_.coordinator.heard(connection, frame); });
}

void Agent::perform(const link::Close& close) {
  const auto found = connections_.find(close.line);
  if (found == connections_.end()) return;
  const ConnectionPtr connection = found->second;
  connections_.erase(found);
  around_.network.close(connection, Connection::agent, close.how == link::Close::How::after_writes);
}

void Agent::perform(const link::Tell& tell) {
  if (const auto* lost = std::get_if<LinkLost>(&tell.event)) {
    world_.say(fmt::format("{} gives up with {}: {}", host_, lost->exit_code, lost->reason));
    lost_ = *lost;
    ++workers_number_;
    return finish();
  }
  std::visit([&](const auto& message) { obey(message); }, std::get<CoordinatorMessage>(tell.event));
}

// ---- the agent

void Agent::join() {
  if (over()) return;
  Join join;
  join.node = NodeId{fmt::format("{}_{}_{}", host_, life_, link_->incarnation())};
  join.host = host_;
  join.local_world_size = 2;
  join.terms = around_.terms;
  step(link::Say{std::move(join)});
}

void Agent::obey(const HostStore& host) {
  process_.later(world_.milliseconds(0, 50), [this, round = host.round] {
    if (!over()) step(link::Say{StoreReady{round, Port{static_cast<std::uint16_t>(world_.pick(1024, 65535))}}});
  });
}

void Agent::obey(const Placed& placed) {
  if (left_) return;
  world_.say(fmt::format("{} starts workers of round {}", host_, placed.placement.round.value()));
  around_.promises.workers_start(around_.workers, node_, placed.placement);
  work(placed.placement.round, ++workers_number_);
}

void Agent::obey(const StopWorkers& stop) {
  const bool fenced = stop.cause == StopCause::fenced;
  world_.say(fmt::format("{} stops round {}{}", host_, stop.round.value(), fenced ? ": fenced" : ""));
  if (left_) return;
  saved_ = saved_ && !stop.save;
  if (saved_) return;
  const int number = ++workers_number_;
  if (fenced && around_.mutation == Mutation::no_fence) {
    return process_.later(around_.terms.lease, [this] {
      end_workers();
      join();
    });
  }
  // A kill is the kernel's work, and done whatever becomes of the agent.
  if (fenced)
    world_.after(world_.milliseconds(1, 20), [this, number] {
      if (alive() && number == workers_number_) end_workers();
    });
  process_.later(fenced ? world_.milliseconds(21, 40) : world_.milliseconds(0, 500), [this, number] {
    if (number != workers_number_ || over()) return;
    end_workers();
    join();
  });
}

void Agent::obey(const End& end) {
  world_.say(fmt::format("{} ends with {}: {}", host_, end.verdict.exit_code, end.verdict.reason));
  world_.promise(!verdict_, "a verdict is told twice");
  verdict_ = end.verdict;
  ++workers_number_;
  finish();
}

void Agent::finish() {
  end_workers();
  process_.later(world_.milliseconds(0, 100), [this] {
    step(link::Finish{});
    for (const auto& [line, connection] : connections_) {
      around_.network.close(connection, Connection::agent, true);
    }
    connections_.clear();
  });
}

/// Workers end well when they may, and sometimes badly before.
void Agent::work(Round round, int number) {
  process_.later(world_.milliseconds(100, 4000), [this, round, number] {
    if (number != workers_number_) return;
    if (around_.workers_may_finish) {
      end_workers();
      return step(link::Say{WorkersSucceeded{round}});
    }
    if (!around_.workers_may_fail || !world_.one_in(40)) return work(round, number);
    world_.say(host_ + ": a worker fails");
    around_.promises.worker_failed(round);
    WorkersFailed failed{.round = round};
    failed.failures.push_back({.rank = around_.workers[node_].place->first_rank, .exit_code = 1, .host = host_});
    ++workers_number_;
    step(link::Say{std::move(failed)});
  });
}

}  // namespace torchup::simulation
