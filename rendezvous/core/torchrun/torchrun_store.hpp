#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/torchrun_wire/torchrun_state.hpp"

namespace torchup {

/// Where workers meet: what MASTER_ADDR and MASTER_PORT say.
struct MeetingPlace {
  std::string address = {};
  Port port{0};
  friend bool operator==(const MeetingPlace&, const MeetingPlace&) = default;
};

class TorchrunCare;

/// What the two keys of a place say. Errors: errc::bad_frame for an address that is no name (names.hpp), and for a port
/// that is none.
[[nodiscard]] Result<MeetingPlace> read_place(const std::string& address, const std::string& port);

/// The store in which a job's torchrun agents meet, as a participant of ours uses it: no call waits for a key. An error
/// means that the store is gone.
///
/// Either a torchrun agent owns it; then each of our agents plays the part of one (core/torchrun_peer). Or it is ours:
/// then one machine decides for all of our agents of the job (core/mixed_round), and only the store's owner writes what
/// they are in the shared state (core/torchrun_care).
class TorchrunStore {
 public:
  virtual ~TorchrunStore() = default;
  [[nodiscard]] virtual Result<std::optional<std::string>> find(const std::string& key) = 0;
  virtual Result<> set(const std::string& key, const std::string& value) = 0;
  [[nodiscard]] virtual Result<std::int64_t> add(const std::string& key, std::int64_t delta) = 0;
  /// What the key holds then.
  [[nodiscard]] virtual Result<std::string> compare_set(const std::string& key, const std::string& expected,
                                                        const std::string& desired) = 0;

  /// Only where the store is ours.
  virtual void erase(const std::string& key) = 0;

  /// Counts this node as one that has come, for whom torchrun's group rank 0 waits in a static rendezvous.
  virtual Result<> count_in() = 0;

  /// What cares for the job at a store of ours; null where a torchrun agent owns it.
  [[nodiscard]] virtual TorchrunCare* owner() = 0;
  /// A place for the workers of all rounds that outlives every node. Nothing: workers meet on group rank 0's node.
  [[nodiscard]] virtual Result<std::optional<MeetingPlace>> common_place() = 0;
  /// Removes what the workers of earlier rounds left at that place, before those of `round` start. False: not done yet,
  /// ask again. A place that is out of reach is left as it is.
  [[nodiscard]] virtual bool empty(const MeetingPlace& place, std::int64_t round) = 0;
};

// Agents of ours among torchrun's nodes. Group ranks follow the order of addresses, then pids, as torchrun has it;
// local ids, which come last, tell ours from torchrun's, which counts them from 0.

/// An agent of ours. `to_be_last`: it joins a job that has run already, and must not become group rank 0: torchrun's
/// agents never read a second address of the workers' place. A letter before its address sorts it behind all others.
[[nodiscard]] TorchrunNode our_node(const std::string& address, std::int64_t pid, std::int64_t number, bool to_be_last);
[[nodiscard]] bool is_ours(const TorchrunNode& node);

/// Stands on the wait list for `node`, which itself stands elsewhere, to call the others to another round: the wait
/// list is the only thing that torchrun's agents look at.
[[nodiscard]] TorchrunNode caller_for(const TorchrunNode& node);
[[nodiscard]] bool is_caller(const TorchrunNode& node);

/// The node's address, for people.
[[nodiscard]] std::string shown(const TorchrunNode& node);

/// The same of several.
[[nodiscard]] std::string shown(const std::vector<TorchrunNode>& nodes);

/// The participants by group rank; nothing where these are not 0, 1, 2, …: somebody of the round is lost already, or
/// what is written there is none of torchrun's.
[[nodiscard]] std::optional<std::vector<TorchrunNode>> by_group_rank(const TorchrunState& state);

/// Whether the state has the node in one of its lists.
[[nodiscard]] bool has_node(const TorchrunState& state, const TorchrunNode& node);

/// Where the workers of a round meet, if that is published yet; and how it is published.
[[nodiscard]] Result<std::optional<MeetingPlace>> published_place(TorchrunStore& store, const RunId& run_id,
                                                                  std::int64_t round);
Result<> publish_place(TorchrunStore& store, const RunId& run_id, std::int64_t round, const MeetingPlace& place);

/// `torch.rendezvous.<run id>`: where the state stands.
[[nodiscard]] std::string torchrun_state_key(const RunId& run_id);
/// `torch.rendezvous.<run id>.<round>/<name>`.
[[nodiscard]] std::string torchrun_round_key(const RunId& run_id, std::int64_t round, const std::string& name);

namespace torchrun_key {
inline constexpr const char* master_address = "MASTER_ADDR";
inline constexpr const char* master_port = "MASTER_PORT";
/// How many nodes have come to the exit barrier: those agents send no heartbeats and come to no other round.
inline constexpr const char* barrier_count = "torchelastic/agent/terminal_state/num_members";
/// Set by the last of them: all go on.
inline constexpr const char* barrier_open = "torchelastic/agent/terminal_state/last_member";
inline constexpr const char* roles = "torchelastic/role_info/";
inline constexpr const char* places = "torchelastic/assigned_ranks/";
}  // namespace torchrun_key

}  // namespace torchup
