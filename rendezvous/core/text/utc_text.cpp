#include "rendezvous/core/text/utc_text.hpp"

#include <array>
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

}  // namespace torchup
