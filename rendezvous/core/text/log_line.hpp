#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace torchup {

enum class LogLevel : std::uint8_t { debug, info, warning, error };

/// One line for people about what a program did or saw. Foreign text may stand in it as it came: whoever writes the
/// line makes it printable.
struct LogLine {
  LogLine() = default;
  LogLine(std::string what) : text{std::move(what)} {}  // NOLINT: most lines are a text and nothing else
  LogLine(const char* what) : text{what} {}             // NOLINT
  LogLine(LogLevel how_bad, std::string what) : level{how_bad}, text{std::move(what)} {}
  LogLine(LogLevel how_bad, std::string kind, std::string what)
      : level{how_bad}, text{std::move(what)}, like{std::move(kind)} {}

  /// The same line, of which a peer at that address is the cause: it gets one of its kind per window.
  [[nodiscard]] LogLine&& because_of(std::string address) && {
    source = std::move(address);
    return std::move(*this);
  }

  LogLevel level = LogLevel::info;
  std::string text = {};
  std::string like = {};    ///< lines with the same word here are one message, and may flood; empty: those of one text
  std::string source = {};  ///< whose doing it is: a numeric address without port; empty: ours
  std::string job = {};     ///< the run id it is about; empty: none
};

using LogSink = std::function<void(LogLine line)>;

}  // namespace torchup
