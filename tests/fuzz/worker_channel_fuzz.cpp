// What an agent and its worker say to each other: what was read is written so that it is read alike.
#include "rendezvous/base/worker_channel.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  (void)parse_worker_channel_address(bytes);
  if (const auto word = parse_worker_word(bytes); word && *word) {
    const auto packet = to_packet(**word);
    fuzz::require(packet.has_value());
    const auto again = parse_worker_word(*packet);
    fuzz::require(again && *again);
    if (const auto* raised = std::get_if<WorkerRaised>(&**word)) {  // a text may have been cut
      fuzz::require(raised->text.starts_with(std::get<WorkerRaised>(**again).text));
    } else {
      fuzz::require(**again == **word);
    }
  }
  if (const auto word = parse_agent_word(bytes); word && *word) {
    const auto packet = to_packet(**word);
    fuzz::require(packet.has_value());
    const auto again = parse_agent_word(*packet);
    fuzz::require(again && *again && (**again).index() == (**word).index());
    if (const auto* look = std::get_if<LookWanted>(&**word)) fuzz::require(std::get<LookWanted>(**again) == *look);
    if (const auto* place = std::get_if<NewPlace>(&**word)) fuzz::require(std::get<NewPlace>(**again) == *place);
  }
  return 0;
}
