#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

namespace torchup {

/// Reads `text` as exactly these decimal numbers with colons between them; false where it is anything else.
template <class... Numbers>
bool read_colon_numbers(std::string_view text, Numbers&... numbers) {
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  bool first = true;
  const auto take = [&](auto& number) {
    if (!first && (at == end || *at++ != ':')) return false;
    first = false;
    const auto [stop, error] = std::from_chars(at, end, number);
    at = stop;
    return error == std::errc{};
  };
  return (take(numbers) && ...) && at == end;
}

}  // namespace torchup
