#include "launcher/core/scheduler/stop_time.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdint>

#include "launcher/core/text/signals.hpp"
#include "rendezvous/core/link/messages.hpp"

namespace torchup {
namespace {

struct Unit {
  char letter;
  std::int64_t seconds;
};
constexpr std::array<Unit, 4> units{Unit{'d', 86'400}, Unit{'h', 3'600}, Unit{'m', 60}, Unit{'s', 1}};
constexpr std::int64_t seconds_max = std::chrono::duration_cast<std::chrono::seconds>(duration_max).count();

/// The digits at the front of `text`, which are taken off it. Nothing for none, and for a number that is no time.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || text.front() == '-' || number > seconds_max) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

std::optional<Duration> parse_duration(std::string_view text) {
  std::int64_t total = 0;
  auto unit = units.begin();
  const bool plain = text.find_first_not_of("0123456789") == std::string_view::npos;
  while (!text.empty()) {
    const auto number = take_number(text);
    if (!number) return std::nullopt;
    if (!plain && text.empty()) return std::nullopt;
    unit = plain ? std::prev(units.end())
                 : std::find_if(unit, units.end(), [&](const Unit& each) { return each.letter == text.front(); });
    if (unit == units.end()) return std::nullopt;
    total += *number * unit->seconds;
    ++unit;
    if (!plain) text.remove_prefix(1);
  }
  if (total <= 0 || total > seconds_max) return std::nullopt;
  return std::chrono::seconds{total};
}

Result<StopBefore> parse_stop_before(std::string_view text) {
  const auto at = text.find('@');
  const auto lead = parse_duration(text.substr(0, at));
  if (!lead) return fail(errc::bad_value, "is no time: 300, 90s, 5m, 1h30m and 1d are some, 365 days at most");
  StopBefore stop{.lead = *lead};
  if (at == std::string_view::npos) return stop;
  const auto number = signal_number(text.substr(at + 1));
  if (!number || !is_for_users(*number)) {
    return fail(errc::bad_value, "names no signal that can ask for this behind the @; TERM, USR1, USR2 can");
  }
  stop.signal = *number;
  return stop;
}

void StopTime::know(std::optional<TimePoint> end) {
  if (stopping_ && !end) return;
  const bool same = end && end_ && (*end > *end_ ? *end - *end_ : *end_ - *end) < end_slack;
  asked_ = asked_ && same;
  untold_ = false;
  end_ = end;
}

StopTime::Due StopTime::due(TimePoint now) {
  if (stopping_) return Due::nothing;
  if (!end_) return untold_due(now);
  if (now >= *end_ - lead_) {
    stopping_ = true;
    return Due::stopping;
  }
  if (!asks_ || asked_ || now < *end_ - lead_ - end_asked_ahead) return Due::nothing;
  asked_ = true;
  return Due::asking;
}

StopTime::Due StopTime::untold_due(TimePoint now) {
  if (!untold_ || !asks_) return Due::nothing;
  if (!untold_ask_) untold_ask_ = now + untold_asked_every;
  if (now < *untold_ask_) return Due::nothing;
  untold_ask_ = now + untold_asked_every;
  return Due::asking;
}

std::optional<TimePoint> StopTime::deadline() const {
  if (stopping_) return std::nullopt;
  if (!end_) return untold_ ? untold_ask_ : std::nullopt;
  const TimePoint stop = *end_ - lead_;
  return asks_ && !asked_ ? stop - end_asked_ahead : stop;
}

bool StopTime::heed_stop(TimePoint now) {
  if (stopping_) return false;
  if (!end_ || now < *end_ - lead_ - end_asked_ahead) end_ = now + lead_;
  return true;
}

Duration StopTime::unsaved_time() const { return std::min<Duration>(unsaved_limit, lead_ / 5); }

TimePoint StopTime::terminate_at() const { return *end_ - unsaved_time(); }

TimePoint StopTime::kill_at() const { return terminate_at() + std::min(grace_, unsaved_time() * 5 / 6); }

}  // namespace torchup
