#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "rendezvous/base/result.hpp"

namespace torchup {

/// The channel between an agent and one of its workers: what a worker that outlives its round and its agent say to
/// each other. A program that knows nothing of it never notices it.
///
/// The agent makes it (a pair of SOCK_SEQPACKET sockets), hands one end down as a descriptor and names it in
/// TORCHUP_WORKER_CHANNEL. A packet is a verb and lines NAME=value, each ended by a line feed, worker_packet_bytes_max
/// at most. Both sides take what comes for a stranger's words. Verbs and names that are not known are passed over, so
/// that a program can be older or newer than its agent; anything else that cannot be read ends the channel.
inline constexpr std::size_t worker_packet_bytes_max = 16 << 10;
inline constexpr const char* worker_channel_variable = "TORCHUP_WORKER_CHANNEL";

// What a worker says.

/// It is where it can be kept when the round ends: inside of what it repeats in every round.
struct WorkerStays {
  friend bool operator==(const WorkerStays&, const WorkerStays&) = default;
};
/// It is there no more: it ends as any other.
struct WorkerLeaves {
  friend bool operator==(const WorkerLeaves&, const WorkerLeaves&) = default;
};
/// An exception ended its part in a round of which no end is known to it. Answered with RoundOver or OwnFault.
struct WorkerRaised {
  std::string text;  ///< the exception's, for people
  friend bool operator==(const WorkerRaised&, const WorkerRaised&) = default;
};
/// It has left the round: collectives ended, group destroyed, state as at its last commit. It waits for NewPlace.
struct WorkerParked {
  std::int64_t step = 0;  ///< commits so far; at least 0
  friend bool operator==(const WorkerParked&, const WorkerParked&) = default;
};
/// To LookWanted: the answer lies in the first `length` bytes of the answer area (worker_page.hpp), as JSON
/// (launcher/core/diagnosis/worker_answer.hpp).
inline constexpr std::size_t looked_groups_max = 1024;  ///< further ones are left out
inline constexpr std::size_t looked_entries_max = 256;  ///< of the recorder; of more, the last
struct WorkerLooked {
  std::uint64_t number = 0;  ///< as asked
  std::size_t length = 0;    ///< worker_answer_bytes at most
  friend bool operator==(const WorkerLooked&, const WorkerLooked&) = default;
};
using WorkerWord = std::variant<WorkerStays, WorkerLeaves, WorkerRaised, WorkerParked, WorkerLooked>;

// What an agent says.

/// The round is over: leave its collectives and park.
struct RoundOver {
  std::string reason;  ///< for people
  friend bool operator==(const RoundOver&, const RoundOver&) = default;
};
/// To WorkerRaised: nobody else failed; raise it.
struct OwnFault {
  friend bool operator==(const OwnFault&, const OwnFault&) = default;
};
/// To WorkerParked: the next round.
struct NewPlace {
  std::map<std::string, std::string> variables;  ///< all of the worker's contract
  friend bool operator==(const NewPlace&, const NewPlace&) = default;
};
/// How far are its process groups? To workers alone whose page names a helper thread: others would not answer.
struct LookWanted {
  std::uint64_t number = 0;  ///< below 10^19
  bool in_passing = false;   ///< nothing is wrong: what would cost the program more than a moment is left out
  friend bool operator==(const LookWanted&, const LookWanted&) = default;
};
using AgentWord = std::variant<RoundOver, OwnFault, NewPlace, LookWanted>;

/// Errors: errc::limit_exceeded when the packet would be longer than worker_packet_bytes_max; errc::bad_value when a
/// variable's name is none or its value holds a line feed or a zero byte. Texts for people are fitted: cut, and made
/// one line.
[[nodiscard]] Result<std::string> to_packet(const WorkerWord& word);
[[nodiscard]] Result<std::string> to_packet(const AgentWord& word);

/// Nothing: a verb that is not known here.
/// Errors: errc::bad_frame, errc::limit_exceeded.
[[nodiscard]] Result<std::optional<WorkerWord>> parse_worker_word(std::string_view packet);
[[nodiscard]] Result<std::optional<AgentWord>> parse_agent_word(std::string_view packet);

/// Value of TORCHUP_WORKER_CHANNEL, `1:DESCRIPTOR:INODE:PID`: which descriptor, and by what the worker knows that it is
/// still the channel and meant for it (a script between agent and worker may have closed and reused it, or have started
/// several programs). 1 is the version of what is said there.
struct WorkerChannelAddress {
  int fd = -1;
  std::uint64_t inode = 0;
  std::int64_t pid = 0;

  friend bool operator==(const WorkerChannelAddress&, const WorkerChannelAddress&) = default;
};
[[nodiscard]] std::string to_text(const WorkerChannelAddress& address);
/// Errors: errc::bad_value; errc::wrong_version.
[[nodiscard]] Result<WorkerChannelAddress> parse_worker_channel_address(std::string_view text);

}  // namespace torchup
