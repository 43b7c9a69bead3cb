// A worker's error file.
#include "launcher/core/record/error_file.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  const auto words = parse_error_file(bytes);
  if (!words) return 0;
  // What is handed on is an error file again, and a report of it another.
  const auto handed_on = parse_error_file(with_error_code(bytes, 7));
  fuzz::require(handed_on.has_value());
  fuzz::require(
      parse_error_file(make_error_file(words->message, words->traceback, words->time_us / 1'000'000)).has_value());
  return 0;
}
