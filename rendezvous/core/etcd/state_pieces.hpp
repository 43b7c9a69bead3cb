#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/etcd/etcd_messages.hpp"
#include "rendezvous/core/etcd/scope.hpp"

/// A job's state in etcd: bytes (of encode_job) in pieces that fit a request each, and a head that says which pieces
/// are the state. What is written is seen as a whole or not at all, for only the head's change makes it so.
namespace torchup::etcd {

inline constexpr std::size_t piece_bytes_max = std::size_t{1} << 20;
inline constexpr std::uint64_t pieces_max = 1024;

/// How a job ended, for those who come when no coordinator is left.
struct RecordedVerdict {
  int exit_code = 0;
  std::string reason = {};
  friend bool operator==(const RecordedVerdict&, const RecordedVerdict&) = default;
};
struct StateHead {
  std::uint64_t serial = 0;  ///< of this writing; the next one's is greater
  std::uint64_t pieces = 0;
  std::uint64_t bytes = 0;
  std::uint64_t sum = 0;  ///< checksum() of the bytes
  std::optional<RecordedVerdict> verdict = {};
  friend bool operator==(const StateHead&, const StateHead&) = default;
};
[[nodiscard]] std::string encode_head(const StateHead& head);
/// Errors: errc::wrong_version, of another release; errc::bad_frame for what is damaged or contradicts itself.
[[nodiscard]] Result<StateHead> read_head(std::string_view value);

struct StateWrite {
  RunId run_id{""};
  std::string_view bytes = {};
  std::optional<RecordedVerdict> verdict = {};
  std::uint64_t serial = 0;  ///< greater than the last known head's
  Revision term{0};          ///< of our seat
  Revision head{0};          ///< of the last known head; 0: there is none
  LeaseId lease{0};          ///< on which all of it hangs
};

/// One txn after the other, each of which etcd refuses once the seat or the head is another's. The last one has the
/// head, and removes what was written before; what an interrupted writing left goes too.
///
/// Errors: errc::limit_exceeded beyond pieces_max.
[[nodiscard]] Result<std::vector<Txn>> write_state(const Scope& scope, const StateWrite& state);

/// What people are told of a state that cannot be used, whose head or other key is `key`, with the remedy.
[[nodiscard]] Error unusable_state(std::string_view key, const Error& why);

struct ReadState {
  RunId run_id{""};
  StateHead head = {};
  Revision changed{0};  ///< of the head
  std::string bytes = {};
  friend bool operator==(const ReadState&, const ReadState&) = default;
};
/// All states of what a range of scope.states() found. Pieces without a head are no state.
///
/// Errors, whose context names the key and the remedy: errc::wrong_version; errc::bad_frame for a head without its
/// pieces, another sum, a key that is none of ours.
[[nodiscard]] Result<std::vector<ReadState>> read_states(const Scope& scope, std::span<const Entry> entries);

}  // namespace torchup::etcd
