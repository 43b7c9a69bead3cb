#include "network.hpp"

namespace torchup::simulation {

void Network::set(std::size_t node, Way way) {
  ways_[node] = way;
  std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : connections_) {
    const auto connection = weak.lock();
    if (connection->node != node) continue;
    for (const auto from : {Connection::agent, Connection::coordinator}) {
      if (passage(*connection, from) != Passage::through) continue;
      for (auto& what : std::exchange(connection->sides[from].held, {})) {
        arrive(connection, other(from), std::move(what));
      }
    }
  }
}

/// A first packet that is lost is sent again after a second.
void Network::try_dial(std::size_t node, Process& from, const std::function<Process*()>& listener, TimePoint until,
                       const std::function<void(ConnectionPtr, bool)>& answered) {
  const Way& way = ways_[node];
  if (way.up == Passage::rejected) {
    return from.later(std::chrono::microseconds{world_.pick(1, 100)}, [answered] { answered(nullptr, true); });
  }
  if (way.up == Passage::through && way.down == Passage::through) {
    return world_.after(latency(), [this, node, &from, listener, answered] {
      Process* const there = listener();
      if (!there) return from.later(latency(), [answered] { answered(nullptr, true); });
      const auto connection = std::make_shared<Connection>();
      connection->number = ++connection_count_;
      connection->node = node;
      connection->processes[Connection::agent] = &from;
      connection->processes[Connection::coordinator] = there;
      connections_.push_back(connection);
      from.later(latency(), [answered, connection] { answered(connection, false); });
    });
  }
  if (world_.now() + 1s > until) {
    return world_.at(until, [&from, answered] { from.run([answered] { answered(nullptr, false); }); });
  }
  world_.after(1s, [this, node, &from, listener, until, answered] { try_dial(node, from, listener, until, answered); });
}

void Network::dial(std::size_t node, Process& from, std::function<Process*()> listener, Duration limit,
                   std::function<void(ConnectionPtr, bool refused)> answered) {
  try_dial(node, from, listener, world_.now() + limit, answered);
}

void Network::arrive(const ConnectionPtr& connection, Connection::Side to, std::function<void()> what) {
  Connection::Half& sender = connection->sides[other(to)];
  sender.last_arrival = std::max(sender.last_arrival + 1us, world_.now() + latency());
  world_.at(sender.last_arrival, std::move(what));
}

void Network::send(const ConnectionPtr& connection, Connection::Side from, std::function<void()> read) {
  Connection::Half& half = connection->sides[from];
  if (!half.open) return;
  const Passage passage = this->passage(*connection, from);
  if (passage == Passage::rejected) {  // never from within: whoever writes does not expect its own end
    return world_.after(1us, [this, connection, from] { break_end(connection, from); });
  }
  const auto to = other(from);
  auto what = [this, connection, to, read = std::move(read)] {
    // Nobody is there any more: the kernel says so to the sender.
    if (!connection->sides[to].open || !connection->processes[to]->alive()) return reset(connection, other(to));
    connection->processes[to]->run([connection, to, read] {
      if (connection->sides[to].open) read();
    });
  };
  if (passage == Passage::through && half.held.empty()) return arrive(connection, to, std::move(what));
  if (half.held.empty()) {
    world_.after(patience_, [this, connection, from] {
      if (connection->sides[from].held.empty()) return;
      connection->sides[from].held.clear();
      break_end(connection, from);
    });
  }
  half.held.push_back(std::move(what));
}

void Network::close(const ConnectionPtr& connection, Connection::Side from, bool end_of_file) {
  Connection::Half& half = connection->sides[from];
  if (!std::exchange(half.open, false)) return;
  const auto to = other(from);
  if (!end_of_file) {
    half.held.clear();
    return reset(connection, to);
  }
  auto what = [connection, to] {
    connection->processes[to]->run([connection, to] {
      Connection::Half& there = connection->sides[to];
      if (std::exchange(there.open, false) && there.on_closed) there.on_closed(true);
    });
  };
  const Passage passage = this->passage(*connection, from);
  if (passage == Passage::rejected) return;
  if (passage == Passage::dropped || !half.held.empty()) return half.held.push_back(std::move(what));
  arrive(connection, to, std::move(what));
}

/// A reset is sent once: what is dropped on the way is lost.
void Network::reset(const ConnectionPtr& connection, Connection::Side to) {
  if (passage(*connection, other(to)) != Passage::through) return;
  arrive(connection, to, [this, connection, to] { break_end(connection, to); });
}

void Network::break_end(const ConnectionPtr& connection, Connection::Side side) {
  connection->processes[side]->run([connection, side] {
    Connection::Half& half = connection->sides[side];
    if (std::exchange(half.open, false) && half.on_closed) half.on_closed(false);
  });
}

}  // namespace torchup::simulation
