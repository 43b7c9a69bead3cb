#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace torchup {

/// One event of a text/event-stream.
struct StreamEvent {
  std::string name;  ///< snapshot, change, event, gap
  std::string id;    ///< of this one; empty: it has none
  std::string data;
  friend bool operator==(const StreamEvent&, const StreamEvent&) = default;
};

inline constexpr std::size_t stream_event_bytes_max = std::size_t{32} << 20;

/// Bytes in, events out. Pure. Comments are passed over; an event without data is none.
/// Source: HTML Living Standard, 9.2.6.
class StreamEvents {
 public:
  void add(std::string_view bytes);
  [[nodiscard]] std::optional<StreamEvent> next();
  /// One event is longer than it may be: nothing more is read.
  [[nodiscard]] bool too_long() const { return too_long_; }

 private:
  void take_line(std::string_view line);

  std::string bytes_;
  std::size_t seen_ = 0;  ///< of them there is no line end in these
  StreamEvent event_;
  bool has_data_ = false;
  bool too_long_ = false;
};

}  // namespace torchup
