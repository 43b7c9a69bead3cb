#include "rendezvous/core/text/utc_text.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>

namespace torchup {

std::string utc_text(std::int64_t utc_us) {
  using namespace std::chrono;
  const sys_time<microseconds> time{microseconds{utc_us}};
  const auto day = floor<days>(time);
  const year_month_day date{day};
  const hh_mm_ss<microseconds> clock{time - day};
  std::array<char, 64> text{};
  const int length =
      std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d.%06dZ", static_cast<int>(date.year()),
                    static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                    static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
                    static_cast<int>(clock.seconds().count()), static_cast<int>(clock.subseconds().count()));
  return std::string(text.data(), static_cast<std::size_t>(length));
}

namespace {

/// The number in exactly these digits of `text`.
std::optional<int> digits_at(std::string_view text, std::size_t at, std::size_t count) {
  if (text.size() < at + count) return std::nullopt;
  const std::string_view digits = text.substr(at, count);
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  int number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

}  // namespace

std::optional<std::int64_t> read_utc(std::string_view text) {
  using namespace std::chrono;
  constexpr std::string_view form = "0000-00-00T00:00:00";
  const auto year_number = digits_at(text, 0, 4), month_number = digits_at(text, 5, 2),
             day_number = digits_at(text, 8, 2), hour = digits_at(text, 11, 2), minute = digits_at(text, 14, 2),
             second = digits_at(text, 17, 2);
  if (!year_number || !month_number || !day_number || !hour || !minute || !second) return std::nullopt;
  for (const std::size_t at : {4U, 7U, 10U, 13U, 16U}) {
    if (text[at] != form[at]) return std::nullopt;
  }
  const year_month_day date{year{*year_number}, month{static_cast<unsigned>(*month_number)},
                            day{static_cast<unsigned>(*day_number)}};
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 60 || !text.ends_with('Z')) return std::nullopt;
  std::string_view fraction = text.substr(form.size(), text.size() - form.size() - 1);
  std::int64_t us = 0;
  if (!fraction.empty()) {
    if (fraction.size() < 2 || fraction.front() != '.') return std::nullopt;
    std::string six{fraction.substr(1, 6)};
    six.resize(6, '0');
    const auto number = digits_at(six, 0, 6);
    if (!number || fraction.find_first_not_of("0123456789", 1) != std::string_view::npos) return std::nullopt;
    us = *number;
  }
  const auto whole = sys_days{date} + hours{*hour} + minutes{*minute} + std::chrono::seconds{*second};
  return duration_cast<microseconds>(whole.time_since_epoch()).count() + us;
}

}  // namespace torchup
