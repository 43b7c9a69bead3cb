#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"

/// The link of a fan-out: what its front, where the user is, and `torchup --link` on a host say to each other over that
/// one's standard input and output, as bytes. PROTOCOL.md shows them byte by byte.
///
/// The host begins with link_greeting; what stands before it is a login shell's. Then both sides send frames: u8
/// channel, u32 length of what follows, at most link_frame_bytes_max. Each channel is a stream of bytes, cut anywhere.
/// On the control channel that stream is of messages: u32 length, u8 type, fields, as on an agent's connection
/// (agent_codec). Channels and types that are not known are passed over.
namespace torchup {

inline constexpr std::string_view link_greeting = "torchup-link 1\n";
inline constexpr std::size_t link_frame_bytes_max = std::size_t{64} << 10;  ///< without the header
inline constexpr std::size_t link_header_bytes = 5;
/// Of output and events that a host has sent and the front has not acknowledged: then the host waits.
inline constexpr std::size_t link_window_bytes = std::size_t{256} << 10;
/// Of a control message: a Plan holds an environment and a command line, and the kernel takes 2 MiB of both.
inline constexpr std::size_t link_message_bytes_max = std::size_t{2} << 20;
inline constexpr std::size_t link_words_max = std::size_t{64} << 10;      ///< arguments, variables
inline constexpr std::size_t link_text_bytes_max = std::size_t{4} << 10;  ///< of a refusal

/// A side that has nothing else to say says Ping so often.
inline constexpr Duration link_ping_interval = std::chrono::seconds{5};
/// A side that has said nothing for so long is gone.
inline constexpr Duration link_silence_max = std::chrono::seconds{15};

enum class LinkChannel : std::uint8_t {
  control = 0,
  out = 1,  ///< of the agent and its workers
  err = 2,
  agents = 3,  ///< the agent's connection to its coordinator, both ways (agent_codec)
  events = 4,  ///< lines for --events
  result = 5,  ///< what the agent would write to --result-file
};

struct LinkFrame {
  LinkChannel channel = LinkChannel::control;
  std::string_view bytes = {};
  friend bool operator==(const LinkFrame&, const LinkFrame&) = default;
};

/// Appends `bytes` to `out`, in as many frames as they need; none for no bytes.
void append_link_frames(std::string& out, LinkChannel channel, std::string_view bytes);

/// Takes one frame off the front of `input`; nothing: there is not yet a whole one. Of channels that are not known
/// nothing is returned. The result lies in what was `input`.
///
/// Errors: errc::limit_exceeded when the frame is larger than link_frame_bytes_max, known from its header.
[[nodiscard]] Result<std::optional<LinkFrame>> take_link_frame(std::string_view& input);

// Control, front to host.

/// What is to run on that host. The first message, sent before anything is heard.
struct LinkPlan {
  std::string version = {};                 ///< of the front's program
  std::string name = {};                    ///< of the host, as the user wrote it: in reports, and for Join::host
  int node = 0;                             ///< index among the hosts, from 0: the order of group ranks
  std::string address = {};                 ///< by which the other hosts reach it; empty: found out
  std::string directory = {};               ///< to work in
  std::vector<std::string> environment{};   ///< "NAME=value", over what is there
  std::vector<std::string> arguments = {};  ///< of torchup, its name first
  std::vector<std::string> program = {};
  int workers = 0;  ///< of this host: hostfile's slots; 0: as the arguments say
  RunId run_id{""};
  std::string token = {};       ///< of the job; empty: none
  bool own_coordinator = true;  ///< it is reached over LinkChannel::agents; else as the arguments say
  bool wants_events = false;    ///< somebody reads LinkChannel::events
  bool wants_result = false;
  friend bool operator==(const LinkPlan&, const LinkPlan&) = default;
};
/// For the agent there, as if somebody had sent it that signal.
struct LinkSignal {
  int number = 0;
  friend bool operator==(const LinkSignal&, const LinkSignal&) = default;
};
/// So much of output and events was taken since the last one.
struct LinkAck {
  std::uint32_t bytes = 0;
  friend bool operator==(const LinkAck&, const LinkAck&) = default;
};
struct LinkPing {
  friend bool operator==(const LinkPing&, const LinkPing&) = default;
};

// Control, host to front.

/// Follows the greeting at once.
struct LinkHello {
  std::string version = {};
  std::string host = {};                    ///< as gethostname gives it
  std::vector<std::string> addresses = {};  ///< numeric, the one by which ssh came first; may be empty
  friend bool operator==(const LinkHello&, const LinkHello&) = default;
};
/// Nothing was started there.
struct LinkRefuse {
  int code = 2;           ///< README, "Exit codes"
  std::string text = {};  ///< one line for people
  friend bool operator==(const LinkRefuse&, const LinkRefuse&) = default;
};
/// The agent has ended, and all that it has started. The last message; all output was sent before.
struct LinkEnded {
  int code = 0;  ///< as a shell shows it
  friend bool operator==(const LinkEnded&, const LinkEnded&) = default;
};

using FrontMessage = std::variant<LinkPlan, LinkSignal, LinkAck, LinkPing>;
using FarMessage = std::variant<LinkHello, LinkRefuse, LinkEnded, LinkPing>;

/// As bytes of the control channel. A text that is too long is cut; of a plan none is that check_link_plan has passed.
[[nodiscard]] std::string encode(const FrontMessage& message);
[[nodiscard]] std::string encode(const FarMessage& message);

/// Errors: errc::limit_exceeded for a plan whose environment and words are more than a message holds.
[[nodiscard]] Result<> check_link_plan(const LinkPlan& plan);

/// Takes one message off the front of the control channel's bytes, and those of unknown types before it; nothing: there
/// is not yet a whole one.
///
/// Errors: errc::limit_exceeded when it is larger than link_message_bytes_max, known from its first four bytes, or a
/// list in it too long; errc::bad_frame for a type of the other direction, and for fields that are cut off or out of
/// their range.
[[nodiscard]] Result<std::optional<FrontMessage>> take_front_message(std::string_view& input);
[[nodiscard]] Result<std::optional<FarMessage>> take_far_message(std::string_view& input);

}  // namespace torchup
