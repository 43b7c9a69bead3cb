#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/strong.hpp"

/// Many connections to a round's store within one: what carries a node's workers to it with --store-proxy.
///
/// A link begins with store_link_preface and the round's key (Placement::store_key; with a token behind TLS); then both
/// sides send frames: u32 length of what follows (little-endian, as all numbers), u8 kind, u32 channel, bytes.
///
/// | kind | who | bytes |
/// | 1 open | the node with the workers | none; channels are numbered from 1, each once |
/// | 2 data | both | 1 to 64 KiB |
/// | 3 credit | both | u32: so many more bytes of data may come |
/// | 4 close | both | none; nothing more is said of that channel, and what comes of it is passed over |
///
/// Each direction of a channel begins with a credit of 256 KiB, so that one worker that does not read holds up no
/// other.
namespace torchup {

inline constexpr std::string_view store_link_preface = "torchup store\n";

inline constexpr std::size_t channel_window_bytes = std::size_t{256} << 10;
inline constexpr std::size_t channel_data_bytes_max = std::size_t{64} << 10;
inline constexpr std::size_t channels_max = 4096;  ///< of a link at once

using ChannelId = Strong<struct ChannelTag, std::uint32_t>;

enum class ChannelFrameKind : std::uint8_t { open = 1, data, credit, close };

struct ChannelFrame {
  ChannelFrameKind kind = ChannelFrameKind::open;
  ChannelId channel{0};
  std::string_view bytes = {};  ///< of data; valid as long as the input
  std::uint32_t credit = 0;
  friend bool operator==(const ChannelFrame&, const ChannelFrame&) = default;
};

void append_channel_frame(std::string& out, const ChannelFrame& frame);

/// Takes one frame off the front of `input`; nothing: there is not yet a whole one. Errors: errc::bad_frame for an
/// unknown kind, a length that is none of that kind, or channel 0.
[[nodiscard]] Result<std::optional<ChannelFrame>> take_channel_frame(std::string_view& input);

namespace channels {

// Events.

/// A worker has connected (the side that opens). Its number is the next one.
struct Came {
  ChannelId channel;
};
/// The peer of that channel (a worker, or the store) says so much: no more than StoreChannels::room.
struct Said {
  ChannelId channel;
  std::string bytes;
};
/// It has taken so much of what was delivered to it.
struct Took {
  ChannelId channel;
  std::size_t bytes;
};
/// It has gone.
struct Left {
  ChannelId channel;
};
/// What has come by the link.
struct Heard {
  std::string_view bytes;
};
using Event = std::variant<Came, Said, Took, Left, Heard>;

// Actions.

/// By the link.
struct Send {
  std::string bytes;
  friend bool operator==(const Send&, const Send&) = default;
};
/// A client of the store has come (the side that serves).
struct Begin {
  ChannelId channel;
  friend bool operator==(const Begin&, const Begin&) = default;
};
struct Deliver {
  ChannelId channel;
  std::string bytes;
  friend bool operator==(const Deliver&, const Deliver&) = default;
};
/// It had no room, and has some again.
struct Resume {
  ChannelId channel;
  friend bool operator==(const Resume&, const Resume&) = default;
};
/// The other side has gone: close it, once what was delivered is taken.
struct End {
  ChannelId channel;
  friend bool operator==(const End&, const End&) = default;
};
/// What comes by the link cannot be understood, or breaks a limit: nothing more is done. All channels have ended.
struct Broken {
  std::string why;
  friend bool operator==(const Broken&, const Broken&) = default;
};
using Action = std::variant<Send, Begin, Deliver, Resume, End, Broken>;

}  // namespace channels

/// One side of a link's channels. Pure.
class StoreChannels {
 public:
  enum class Side : std::uint8_t {
    opens,   ///< where the workers are
    serves,  ///< where the store is
  };

  explicit StoreChannels(Side side) : side_{side} {}

  [[nodiscard]] std::vector<channels::Action> step(const channels::Event& event);

  /// How much that channel's peer may say now; 0 also for one that is not, or no longer, there.
  [[nodiscard]] std::size_t room(ChannelId channel) const;
  [[nodiscard]] std::size_t count() const { return all_.size(); }
  /// Of which Came may speak next; nothing: there are channels_max, or the link is broken.
  [[nodiscard]] std::optional<ChannelId> next() const;

 private:
  struct Channel {
    std::size_t may_say = channel_window_bytes;   ///< the other side's credit
    std::size_t may_hear = channel_window_bytes;  ///< ours
    std::size_t taken = 0;                        ///< and not yet given as credit
  };

  void on(const channels::Came& event);
  void on(const channels::Said& event);
  void on(const channels::Took& event);
  void on(const channels::Left& event);
  void on(const channels::Heard& event);
  /// False: the link is broken.
  bool hear(const ChannelFrame& frame);
  bool break_off(std::string why);

  Side side_;
  std::map<std::uint32_t, Channel> all_;
  std::uint32_t last_ = 0;  ///< the newest channel that there was
  std::string input_;       ///< a frame's beginning
  std::string output_;
  std::vector<channels::Action> actions_;
  bool broken_ = false;
};

}  // namespace torchup
