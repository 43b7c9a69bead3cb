#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/messages.hpp"

/// Messages between agent and coordinator as bytes. PROTOCOL.md shows them byte by byte.
///
/// Where there is a token all of it stands within TLS (net/io/tls). A connection begins with the preface, which tells
/// it from a store client and from HTTP on the same port. Then both sides send frames: u32 length of what follows, u8
/// type, fields. Numbers are little-endian, texts, lists and structures within others have a u32 count in front. Fields
/// may be added at the end of any structure, and new types of frames: who does not know them passes over them.
namespace torchup {

inline constexpr std::string_view agent_preface = "torchup\n";
inline constexpr std::uint16_t agent_protocol_min = 1;  ///< oldest version that we speak
inline constexpr std::uint16_t agent_protocol_max = 1;

inline constexpr std::size_t frame_bytes_max = std::size_t{1} << 20;
inline constexpr std::size_t hello_bytes_max = 512;  ///< of a frame before the peer is welcome
// What a writer cuts and a reader refuses, beside the limits of messages.hpp and of names. A Resume with as much of
// everything as they allow is no larger than frame_bytes_max.
inline constexpr std::size_t text_bytes_max = std::size_t{64} << 10;
inline constexpr std::size_t message_bytes_max = std::size_t{7} << 10;  ///< of one failure's message: its start matters
inline constexpr std::size_t path_bytes_max = 4096;                     ///< as Linux has it

using Nonce = std::array<std::uint8_t, 16>;

// The link's own frames, agent to coordinator.

struct Hello {
  std::uint16_t version_min = agent_protocol_min;
  std::uint16_t version_max = agent_protocol_max;
  bool has_token = false;
  Nonce nonce{};  ///< of a proof that is not made any more
  RunId run_id{""};
  friend bool operator==(const Hello&, const Hello&) = default;
};
struct KeepAlive {
  std::uint64_t number = 0;
  std::optional<ProgressReport> report = {};  ///< the newest, while a round runs
  std::optional<NodeReport> node = {};        ///< the newest, now and then
  std::uint64_t seen = 0;                     ///< number of the newest answer that has come by this line; 0: none has
  friend bool operator==(const KeepAlive&, const KeepAlive&) = default;
};
/// The agent has gone to the coordinator of that term, which has taken the place of this one; it says no more here.
struct Moved {
  std::int64_t term = 0;
  std::vector<std::string> endpoints = {};  ///< as in Elsewhere
  friend bool operator==(const Moved&, const Moved&) = default;
};

// Coordinator to agent.

struct Welcome {
  std::uint16_t version = agent_protocol_max;  ///< both speak it from now on
  bool embedded = false;                       ///< the coordinator lives and dies with an agent of this job
  std::int64_t term = 0;                       ///< of its seat (core/seat); 0: there is no other that could have one
  friend bool operator==(const Welcome&, const Welcome&) = default;
};
struct KeepAliveAnswer {
  std::uint64_t number = 0;
  std::int64_t clock_ns = 0;  ///< the coordinator's monotonic clock, when it answered; 0: not told
  std::int64_t day_ns = 0;    ///< its clock of the day then, since 1970; 0: not told
  /// How old its proof is that nobody else coordinates (core/seat/proof): the agent counts its fence from then.
  Duration age{0};
  bool seated = true;     ///< false: it does not know whether the seat is its own; look whether another has it
  std::int64_t term = 0;  ///< as in Welcome
  friend bool operator==(const KeepAliveAnswer&, const KeepAliveAnswer&) = default;
};
/// Not wanted; the connection is closed after it.
struct Refused {
  int exit_code = 68;
  std::string reason = {};
  friend bool operator==(const Refused&, const Refused&) = default;
};
/// There is no place for one more connection; the agent is to come again. Before the Welcome only.
struct Busy {
  friend bool operator==(const Busy&, const Busy&) = default;
};

/// Who asks for a coordinator is to go there; the connection is closed after it. To a Hello, or when another has taken
/// the seat.
struct Elsewhere {
  std::int64_t term = 0;                    ///< of the one that is meant; 0: none is known
  std::vector<std::string> endpoints = {};  ///< "host:port", endpoints_told_max at most; empty: not known
  friend bool operator==(const Elsewhere&, const Elsewhere&) = default;
};
inline constexpr std::size_t endpoints_told_max = 8;

using AgentFrame = std::variant<Hello, KeepAlive, Join, StoreReady, WorkersFailed, WorkersSucceeded, Leave, Resume,
                                Examined, AskLook, Arrivals, NodeEvent, Ask, Answer, Moved>;
using CoordinatorFrame = std::variant<Welcome, KeepAliveAnswer, Refused, HostStore, Placed, StopWorkers, End, Waiting,
                                      Examine, HangTold, Ask, Answer, Busy, Elsewhere>;

[[nodiscard]] std::string encode(const AgentFrame& frame);
[[nodiscard]] std::string encode(const CoordinatorFrame& frame);

/// Takes one frame off the front of `input`, and frames of unknown types before it; empty when there is not yet a whole
/// one.
///
/// Errors: errc::limit_exceeded when the frame is larger than `bytes_max`, known from its first four bytes, or a text
/// or list in it too long; errc::bad_frame for a type of the other direction, fields that are cut off, out of their
/// range (messages.hpp) or in contradiction to each other, control characters in a name.
[[nodiscard]] Result<std::optional<AgentFrame>> take_agent_frame(std::string_view& input,
                                                                 std::size_t bytes_max = frame_bytes_max);
[[nodiscard]] Result<std::optional<CoordinatorFrame>> take_coordinator_frame(std::string_view& input,
                                                                             std::size_t bytes_max = frame_bytes_max);

}  // namespace torchup
