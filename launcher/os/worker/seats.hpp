#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "launcher/core/scheduler/seat.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/net/io/unique_fd.hpp"

namespace torchup {

inline constexpr Duration seats_limit = std::chrono::seconds{30};       ///< for all tasks of the node to come
inline constexpr Duration seat_agent_limit = std::chrono::seconds{60};  ///< for the agent to be there

/// The agent's side, in a node's first task: the other tasks of the node, which wait for our exit code.
///
/// They come by a socket in the abstract namespace, which needs no file; only processes of our own user are heard.
class Seats {
 public:
  Seats() = default;
  /// Opens the socket and waits until all tasks but ours have said what they are bound to. `name` is seat_name's.
  ///
  /// Errors: the system's; errc::refused after `limit`, naming the tasks that are missing. Those that have come wait
  /// on: `tell` ends them too.
  Result<> gather(const std::string& name, int tasks, Duration limit = seats_limit);

  /// Of those that have come.
  [[nodiscard]] const std::vector<SeatCard>& cards() const { return cards_; }
  /// All tasks end with that code. Who is gone already is passed over.
  void tell(int code);

 private:
  std::vector<SeatCard> cards_;
  std::vector<UniqueFd> seats_;  ///< index: as in cards_
};

/// How a task ends that is no agent.
struct SeatEnd {
  int exit_code = 0;
  std::string why = {};  ///< where it is not the agent's word
};
/// The other side: says what this task is bound to, and waits for the agent's exit code. Meanwhile the calling thread
/// hears no signal that can be blocked.
///
/// 67 when no agent is there within `limit`, 70 when it ends without telling its code.
[[nodiscard]] SeatEnd sit(const std::string& name, const SeatCard& card, Duration limit = seat_agent_limit);

}  // namespace torchup
