#include "launcher/core/text/status_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/printable.hpp"

namespace torchup {
namespace {

constexpr std::string_view erasure = "\r\x1b[K";  // to the line's beginning, and away with the line
constexpr std::string_view grey = "\x1b[90m";
constexpr std::string_view colour_off = "\x1b[0m";

std::string counted(int count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// 0:35, 1:12:03.
std::string clock_text(Duration duration) {
  const auto seconds = std::max<std::int64_t>(0, std::chrono::floor<std::chrono::seconds>(duration).count());
  if (seconds < 3600) return fmt::format("{}:{:02}", seconds / 60, seconds % 60);
  return fmt::format("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
}

}  // namespace

std::string status_text(const StatusFacts& facts, TimePoint now) {
  if (!facts.waits_for.empty())
    return fmt::format("{} ({})", printable(facts.waits_for), clock_text(now - facts.waits_since));
  if (facts.ranks == 0) return "";
  std::string text = counted(facts.ranks, "rank") + " on " + counted(facts.nodes, "node");
  if (facts.step) text += fmt::format(", step {}, {:.1f} steps/s", *facts.step, facts.steps_per_second);
  if (facts.restarts > 0) text += ", " + counted(facts.restarts, "restart");
  return text;
}

std::string_view cut_to_columns(std::string_view text, int columns) {
  int used = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const Character next = first_character(text.substr(at));
    used += next.length == 1 ? 1 : 2;
    if (used >= columns) break;
    at += next.length;
  }
  return text.substr(0, at);
}

std::string StatusLine::before(std::string bytes, TimePoint now) { return make_way(bytes, now) + bytes; }

std::string StatusLine::make_way(std::string_view bytes, TimePoint now) {
  if (bytes.empty()) return "";
  written_ = now;
  line_ended_ = bytes.back() == '\n';
  return erase();
}

std::string StatusLine::draw(std::string_view text, TimePoint now) {
  if (!line_ended_ || now - written_ < status_silence) return "";
  drawn_at_ = now;
  if (text.empty()) return erase();
  if (text == drawn_) return "";
  drawn_ = text;
  return fmt::format("{}{}{}{}", erasure, colour_ ? grey : "", text, colour_ ? colour_off : "");
}

std::string StatusLine::erase() { return std::exchange(drawn_, {}).empty() ? std::string{} : std::string{erasure}; }

std::optional<TimePoint> StatusLine::deadline() const {
  if (!line_ended_) return std::nullopt;
  const TimePoint silent = written_ + status_silence;
  return drawn_at_ ? std::max(silent, *drawn_at_ + status_interval) : silent;
}

}  // namespace torchup
