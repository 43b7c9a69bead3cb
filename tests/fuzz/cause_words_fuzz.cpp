// What a worker has said of its end, in its output or its error file.
#include "launcher/core/record/cause_words.hpp"
#include "launcher/core/text/text.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto lines = lines_of(text);
  std::size_t bytes = 0;
  for (const std::string& line : lines) bytes += line.size();
  fuzz::require(bytes <= size);
  const std::string words = last_words(lines);
  fuzz::require(words.size() <= last_words_bytes_max);
  fuzz::require(plain_words(cause_kind(words)).empty() == (cause_kind(words) == CauseKind::unknown));
  return 0;
}
