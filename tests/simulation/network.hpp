#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/core/link/coordinator_link.hpp"
#include "world.hpp"

namespace torchup::simulation {

/// What becomes of bytes on their way.
enum class Passage : std::uint8_t {
  through,
  dropped,   ///< TCP sends them again: they arrive late, or the sender's connection breaks after its patience
  rejected,  ///< the sender, and it alone, gets a reset
};

struct Connection {
  enum Side : std::uint8_t { agent = 0, coordinator = 1 };
  struct Half {  ///< one side: what it sends, and whether it still counts on the connection
    bool open = true;
    TimePoint last_arrival{};
    std::vector<std::function<void()>> held = {};  ///< dropped on the way, to be sent again
    std::function<void(bool end_of_file)> on_closed = {};
  };
  std::uint64_t number = 0;  ///< in the order of their beginnings
  std::size_t node = 0;
  Process* processes[2] = {nullptr, nullptr};
  Half sides[2] = {};
};
using ConnectionPtr = std::shared_ptr<Connection>;

/// TCP between each node and the coordinator's machine, where one direction of one node may drop or reject.
class Network {
 public:
  Network(World& world, Duration patience) : world_{world}, patience_{patience} {}

  struct Way {
    Passage up = Passage::through, down = Passage::through;  ///< up: from the agent to the coordinator
  };
  void add_node() { ways_.emplace_back(); }
  [[nodiscard]] const Way& way(std::size_t node) const { return ways_[node]; }
  void set(std::size_t node, Way way);

  /// Calls `answered` with a connection, or with none and whether it was refused, within `limit`.
  /// `listener` gives the coordinator's process; null: nobody listens.
  void dial(std::size_t node, Process& from, std::function<Process*()> listener, Duration limit,
            std::function<void(ConnectionPtr, bool refused)> answered);

  /// `read` is done by the other side when the bytes have arrived, unless its end is closed by then.
  void send(const ConnectionPtr& connection, Connection::Side from, std::function<void()> read);
  /// In good order, or by a reset.
  void close(const ConnectionPtr& connection, Connection::Side from, bool end_of_file);
  /// That side alone loses the connection.
  void break_end(const ConnectionPtr& connection, Connection::Side side);

 private:
  [[nodiscard]] Duration latency() { return std::chrono::microseconds{world_.pick(50, 20'000)}; }
  [[nodiscard]] Passage passage(const Connection& connection, Connection::Side from) const {
    const Way& way = ways_[connection.node];
    return from == Connection::agent ? way.up : way.down;
  }
  static Connection::Side other(Connection::Side side) {
    return side == Connection::agent ? Connection::coordinator : Connection::agent;
  }
  void arrive(const ConnectionPtr& connection, Connection::Side to, std::function<void()> what);
  void reset(const ConnectionPtr& connection, Connection::Side to);
  void try_dial(std::size_t node, Process& from, const std::function<Process*()>& listener, TimePoint until,
                const std::function<void(ConnectionPtr, bool)>& answered);

  World& world_;
  Duration patience_;
  std::vector<Way> ways_;
  std::uint64_t connection_count_ = 0;
  std::vector<std::weak_ptr<Connection>> connections_;
};

}  // namespace torchup::simulation
