// What agents and the coordinator tell each other of lateness and hangs: the readers never crash, and what was read is
// written as something that reads as the same.
//
// Input: one byte says what it is: a window, the whole of one piece of news, or parts, each behind one byte that says
// whether it is the last, and two of its length.
#include "rendezvous/core/diagnosis/told_parts.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

void check_window(std::string_view bytes) {
  const auto window = decode_window(bytes);
  if (!window) return;
  const std::string written = encode_window(*window);
  fuzz::require(written.size() <= diagnosis_part_bytes_max);
  const auto again = decode_window(written);
  fuzz::require(again && *again == *window);
}

std::optional<DiagnosisNews> read(const std::vector<std::string>& parts) {
  NewsReader reader;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto news = reader.add(parts[i], i + 1 == parts.size());
    fuzz::require(news.has_value());
    if (*news) return **news;
  }
  return std::nullopt;
}

void check_news(const DiagnosisNews& news) {
  const auto written = encode_news(news);
  const auto again = read(written);
  fuzz::require(again.has_value());
  fuzz::require(encode_news(*again) == written);
  const auto* found = std::get_if<hang::Found>(&news);
  if (!found) return;
  const hang::Found brief = in_brief(*found, 4096);
  fuzz::require(read(encode_news(brief)).has_value());
  fuzz::require(read(encode_news(told_to({NodeId{"a"}, "a", Rank{1}, 2}, brief, *found))).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  std::string_view bytes{reinterpret_cast<const char*>(data) + 1, size - 1};
  NewsReader reader;
  switch (data[0] % 3) {
    case 0:
      check_window(bytes);
      break;
    case 1:
      if (const auto news = reader.add(std::string(4, '\0') + std::string{bytes}, true); news && *news) {
        check_news(**news);
      }
      break;
    default:
      while (bytes.size() > 3) {
        const bool last = bytes[0] % 2 != 0;
        const std::size_t length = static_cast<unsigned char>(bytes[1]) + 256u * static_cast<unsigned char>(bytes[2]);
        const std::string_view part = bytes.substr(3, length);
        bytes.remove_prefix(3 + part.size());
        if (const auto news = reader.add(part, last); news && *news) check_news(**news);
      }
  }
  return 0;
}
