// What nodes tell each other before a job: the readers never crash, and what was read is written as something that
// reads as the same.
//
// Input: one byte says what it is: a node, the results of its pairs, the way to it.
#include "launcher/core/diagnosis/preflight_codec.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes{reinterpret_cast<const char*>(data) + 1, size - 1};
  switch (data[0] % 3) {
    case 0:
      if (const auto node = decode_preflight(bytes)) {
        const std::string written = encode_preflight(*node);
        const auto again = decode_preflight(written);
        fuzz::require(again && encode_preflight(*again) == written);
        const std::vector<NodePreflight> nodes{*node};
        fuzz::require(!preflight_table(nodes).empty() && !preflight_json(nodes, 1).empty());
      }
      break;
    case 1:
      if (const auto results = decode_pairs(bytes)) {
        const auto again = decode_pairs(encode_pairs(*results));
        fuzz::require(again && *again == *results);
      }
      break;
    default:
      if (const auto way = decode_way(bytes)) {
        const auto again = decode_way(encode_way(*way));
        fuzz::require(again && *again == *way);
      }
  }
  return 0;
}
