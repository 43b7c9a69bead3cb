#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/text/base64.hpp"

/// The state that torchrun's agents share: one value in their store, a pickle in base64, that each of them rewrites by
/// compare-and-set. Here it is a value, with torchrun's rules as functions on it.
///
/// Source: torchrun, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py and c10d_rendezvous_backend.py;
/// compared with torch 2.15.0.
namespace torchup {

/// UTC by the writer's clock, as agents compare it with their own.
using UtcTime = std::chrono::sys_time<std::chrono::microseconds>;

/// An agent as torchrun's agents name it. Ranks follow this order: by the bytes of `addr`, then by number.
struct TorchrunNode {
  std::string addr = {};
  std::int64_t pid = 0;
  std::int64_t local_id = 0;  ///< tells agents of one process apart; below 0: none of torchrun's, a mark of ours
  friend auto operator<=>(const TorchrunNode&, const TorchrunNode&) = default;
};

struct TorchrunState {
  std::int64_t round = 0;
  bool complete = false;
  std::optional<UtcTime> deadline = {};                    ///< of the last call
  bool closed = false;                                     ///< for good
  std::map<TorchrunNode, std::int64_t> participants = {};  ///< their group ranks; 0 until the round is complete
  std::set<TorchrunNode> wait_list = {};
  std::set<TorchrunNode> redundancy_list = {};  ///< spares
  std::map<TorchrunNode, UtcTime> last_heartbeats = {};
  /// Times carry their zone. Releases that wrote none cannot compare them with those that do.
  bool aware_times = true;
  friend bool operator==(const TorchrunState&, const TorchrunState&) = default;
};

inline constexpr std::size_t torchrun_state_bytes_max = std::size_t{8} << 20;
inline constexpr std::int64_t torchrun_nodes_max = 16384;             ///< of a state
inline constexpr std::int64_t torchrun_node_number_max = 0x7fffffff;  ///< of pid and local_id

/// Reads the pickle by a machine that knows numbers, texts, containers and the five classes of this state, and makes
/// nothing else of it (pickle_machine.hpp has its limits).
///
/// Errors: errc::limit_exceeded for more than torchrun_state_bytes_max; errc::bad_frame for every other pickle: one of
/// more than torchrun_nodes_max nodes, with numbers that are negative or absurd, with an address that is no name
/// (names.hpp), with an unknown attribute: a writer that drops it would break the agents that know it.
[[nodiscard]] Result<TorchrunState> read_torchrun_state(std::string_view pickle);
/// The same from the text that stands at the state's key: the pickle in base64.
[[nodiscard]] Result<TorchrunState> torchrun_state_in(std::string_view text);

/// Protocol 4, memoised as Python does; a state of n nodes takes about as many bytes as Python's own.
[[nodiscard]] std::string write_torchrun_state(const TorchrunState& state);

/// Memory that it takes up.
[[nodiscard]] std::size_t held_bytes(const TorchrunState& state);

/// What the store holds before the first state.
inline constexpr std::string_view torchrun_no_state = "Y2FuaW1hZGFt";

/// Torchrun's keep_alive_interval, in whole seconds, where its agents are told nothing else, and the shortest one; and
/// its keep_alive_max_attempt, after so many intervals without a heartbeat they take an agent for dead.
inline constexpr Duration torchrun_interval_default = std::chrono::seconds{5};
inline constexpr Duration torchrun_interval_min = std::chrono::seconds{1};
inline constexpr int torchrun_attempts_default = 3;

struct TorchrunTerms {
  int min_nodes = 1;
  int max_nodes = 1;
  Duration last_call = std::chrono::seconds{30};
  Duration keep_alive_interval = torchrun_interval_default;
  Duration dead_after = torchrun_interval_default * torchrun_attempts_default;
};

/// Drops nodes that have been silent for longer than `dead_after`; those without a heartbeat are not judged.
void drop_silent(TorchrunState& state, const TorchrunTerms& terms, UtcTime now);

/// Takes the node out of all lists. When the last participant leaves a complete round, the next one begins.
void remove_node(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node);

/// Between its two steps, out of one round and onto the wait list or into the next, an agent is nowhere in the state:
/// for less than this.
inline constexpr Duration torchrun_passage = std::chrono::milliseconds{300};

/// Torchrun's agents look at the wait list once a second: who stops its workers before they saw a change makes theirs
/// fail, which they count.
inline constexpr Duration torchrun_notice = std::chrono::milliseconds{1200};

/// Numbers the participants: the round is theirs.
void complete_round(TorchrunState& state);

enum class TorchrunStep {
  write,  ///< the state was changed: to be stored, then asked again
  wait,   ///< nothing to do now
  done,
  closed,
  too_late,
};

/// One step of `node`'s way out of the round it is in.
[[nodiscard]] TorchrunStep exit_step(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node);

/// One step of `node`'s way into a round: done when it is a participant of a complete one. `overdue`: time past the
/// join timeout.
[[nodiscard]] TorchrunStep join_step(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node,
                                     UtcTime now, std::optional<Duration> overdue);

/// The same without the two that time brings, the end of the last call and of the join timeout, and without heartbeats:
/// `write` or `wait`.
[[nodiscard]] TorchrunStep seek_step(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node,
                                     UtcTime now);

/// One heartbeat, where one is due.
[[nodiscard]] TorchrunStep keep_alive_step(TorchrunState& state, const TorchrunTerms& terms, const TorchrunNode& node,
                                           UtcTime now);

}  // namespace torchup
