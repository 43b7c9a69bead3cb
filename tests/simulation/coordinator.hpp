#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "network.hpp"
#include "promises.hpp"
#include "rendezvous/core/round/rendezvous.hpp"
#include "settings.hpp"

namespace torchup::simulation {

/// The coordinator's process: sessions, clock and disk around the round machine, as torchupd has them.
class Coordinator {
 public:
  Coordinator(World& world, Network& network, Promises& promises, double rate, bool keeps_state, Mutation mutation);

  /// kill -9; connections end by end of file, or by a reset where something lay unread.
  void kill();
  /// Again, with what was saved or with nothing.
  void start();
  void pause(Duration lasts);
  /// Somebody orders this; false: it is refused, or nobody listens.
  bool order(const Order& order);

  [[nodiscard]] Process* process() { return rendezvous_ ? process_.get() : nullptr; }
  [[nodiscard]] const Rendezvous* rendezvous() const { return rendezvous_ ? &*rendezvous_ : nullptr; }
  /// Whether the agent of that name is a drained member.
  [[nodiscard]] bool is_drained(const std::string& agent) const;
  [[nodiscard]] std::string roster() const { return rendezvous_->roster(process_->clock()); }

  /// A connection is there: what the agent writes on it is given to `heard`, what it is to read goes to `deliver`.
  void accept(const ConnectionPtr& connection, std::function<void(const CoordinatorFrame&)> deliver);
  void heard(const ConnectionPtr& connection, const AgentFrame& frame);

 private:
  struct Session {
    ConnectionPtr connection;
    std::function<void(const CoordinatorFrame&)> deliver;
    std::optional<Peer> peer = {};
    std::string node = {};
  };
  void step(const RendezvousEvent& event);
  void perform(Tell& tell);
  void write(const Session& session, CoordinatorFrame frame);
  void closed(std::uint64_t connection, bool end_of_file);
  void save();
  [[nodiscard]] std::string agent_at(const std::string& host) const;

  World& world_;
  Network& network_;
  Promises& promises_;
  double rate_;
  bool keeps_state_;
  Mutation mutation_;
  RendezvousSettings settings_;
  std::unique_ptr<Process> process_;
  std::vector<std::unique_ptr<Process>> former_;  ///< connections still name them
  std::optional<Rendezvous> rendezvous_;          ///< empty while it is not running
  std::string saved_;
  std::map<std::uint64_t, Session> sessions_;  ///< by their connections' numbers
  std::vector<Session*> by_peer_;
};

}  // namespace torchup::simulation
