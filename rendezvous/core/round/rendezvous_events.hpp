#pragma once

#include <optional>
#include <string>
#include <variant>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"
#include "rendezvous/core/membership/membership.hpp"
#include "rendezvous/core/round/notes.hpp"
#include "rendezvous/core/round/orders.hpp"

/// What reaches the round machine (rendezvous.hpp), and what it answers.
namespace torchup {

// Events.

struct Connected {
  Peer peer;
  std::string observed = {};     ///< address the connection comes from, without port; empty inside one process
  std::string coordinator = {};  ///< address by which it reached us
  bool in_process = false;       ///< never silent
};
struct Said {
  Peer peer;
  AgentMessage message;
};
struct Resumed {
  Peer peer;
  Resume resume;
};
struct Alive {
  Peer peer;
};
struct Gone {
  Peer peer;
  bool end_of_file = true;  ///< false: the connection broke, the agent may come back by another
};
/// Whoever starts the agents says on how many nodes one is, or may come to be: the last call waits for no more. With a
/// verdict the job is over, for those too that join only now.
struct Foretold {
  int agents = 0;
  std::optional<Verdict> verdict = {};
  bool others_come = false;  ///< in the place of those that leave, however few that leaves: no end of the job
};
/// Somebody who may steer the job orders this. `by`: "user NAME (uid N)" or "token from ADDRESS".
struct Ordered {
  Order order;
  std::string by = {};
};
struct Tick {};
using RendezvousEvent = std::variant<Connected, Said, Resumed, Alive, Gone, Foretold, Ordered, Tick>;

// Actions.

struct Tell {
  Peer peer;
  CoordinatorMessage message;
  friend bool operator==(const Tell&, const Tell&) = default;
};
/// Tell the peer why it is not wanted, then close its connection; it gets LinkLost.
struct Refuse {
  Peer peer;
  int exit_code = 68;
  std::string reason = {};
  friend bool operator==(const Refuse&, const Refuse&) = default;
};
/// What the shell does, in this order. A Note (core/notes) is for the log.
using RendezvousAction = std::variant<Tell, Refuse, Note>;

/// Whether agents act upon it, or it is an order: then it must not be lost when the coordinator is started anew.
[[nodiscard]] bool decides(const RendezvousAction& action);

}  // namespace torchup
