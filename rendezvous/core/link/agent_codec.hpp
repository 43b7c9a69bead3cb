#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/messages.hpp"

/// Messages between agent and coordinator as bytes. PROTOCOL.md shows them byte by byte.
///
/// A connection begins with the preface, which tells it from a store client and from HTTP on the same port. Then both
/// sides send frames: u32 length of what follows, u8 type, fields. Numbers are little-endian, texts, lists and
/// structures within others have a u32 count in front. Fields may be added at the end of any structure, and new types
/// of frames: who does not know them passes over them.
namespace torchup {

inline constexpr std::string_view agent_preface = "torchup\n";
inline constexpr std::uint16_t agent_protocol_min = 1;  ///< oldest version that we speak
inline constexpr std::uint16_t agent_protocol_max = 1;

inline constexpr std::size_t frame_bytes_max = std::size_t{1} << 20;
inline constexpr std::size_t hello_bytes_max = 512;  ///< of a frame before the peer has proved the token
// What a writer cuts and a reader refuses, beside the limits of messages.hpp and of names. A Resume with as much of
// everything as they allow is no larger than frame_bytes_max.
inline constexpr std::size_t text_bytes_max = std::size_t{64} << 10;
inline constexpr std::size_t message_bytes_max = std::size_t{7} << 10;  ///< of one failure's message: its start matters
inline constexpr std::size_t path_bytes_max = 4096;                     ///< as Linux has it

using Nonce = std::array<std::uint8_t, 16>;
using Mac = std::array<std::uint8_t, 32>;

// The link's own frames, agent to coordinator.

struct Hello {
  std::uint16_t version_min = agent_protocol_min;
  std::uint16_t version_max = agent_protocol_max;
  bool has_token = false;
  Nonce nonce{};
  RunId run_id{""};
  friend bool operator==(const Hello&, const Hello&) = default;
};
/// HMAC-SHA-256 over proof_text, with the token as key.
struct Proof {
  Mac mac{};
  friend bool operator==(const Proof&, const Proof&) = default;
};
struct KeepAlive {
  std::uint64_t number = 0;
  std::optional<ProgressReport> report = {};  ///< the newest, while a round runs
  std::optional<NodeReport> node = {};        ///< the newest, now and then
  friend bool operator==(const KeepAlive&, const KeepAlive&) = default;
};

// Coordinator to agent.

/// Answer to a Hello where a token is set: the coordinator's own proof, and what the agent's must cover.
struct Challenge {
  std::uint16_t version = agent_protocol_max;
  Nonce nonce{};
  Mac mac{};
  friend bool operator==(const Challenge&, const Challenge&) = default;
};
struct Welcome {
  std::uint16_t version = agent_protocol_max;  ///< both speak it from now on
  bool embedded = false;                       ///< the coordinator lives and dies with an agent of this job
  friend bool operator==(const Welcome&, const Welcome&) = default;
};
struct KeepAliveAnswer {
  std::uint64_t number = 0;
  std::int64_t clock_ns = 0;  ///< the coordinator's monotonic clock, when it answered; 0: not told
  std::int64_t day_ns = 0;    ///< its clock of the day then, since 1970; 0: not told
  friend bool operator==(const KeepAliveAnswer&, const KeepAliveAnswer&) = default;
};
/// Not wanted; the connection is closed after it.
struct Refused {
  int exit_code = 68;
  std::string reason = {};
  friend bool operator==(const Refused&, const Refused&) = default;
};

using AgentFrame = std::variant<Hello, Proof, KeepAlive, Join, StoreReady, WorkersFailed, WorkersSucceeded, Leave,
                                Resume, Examined, AskLook, Arrivals, NodeEvent, Ask, Answer>;
using CoordinatorFrame = std::variant<Challenge, Welcome, KeepAliveAnswer, Refused, HostStore, Placed, StopWorkers, End,
                                      Waiting, Examine, HangTold, Ask, Answer>;

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

enum class ProofOf : std::uint8_t { coordinator, agent };
/// What a proof's MAC is computed over: who proves, the version, both nonces, the run id.
[[nodiscard]] std::string proof_text(ProofOf who, std::uint16_t version, const Nonce& agents, const Nonce& coordinators,
                                     const RunId& run_id);

}  // namespace torchup
