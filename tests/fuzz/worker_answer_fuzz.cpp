// What a worker answers when it is asked how far it is.
#include "launcher/core/diagnosis/worker_answer.hpp"
#include "rendezvous/base/worker_channel.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto answer = parse_worker_answer({reinterpret_cast<const char*>(data), size});
  if (!answer) return 0;
  fuzz::require(answer->groups.size() <= looked_groups_max && answer->entries.size() <= looked_entries_max);
  for (const AnsweredGroup& group : answer->groups) {
    fuzz::require(!group.position.name.empty() && group.position.name.size() <= look_group_bytes_max);
    fuzz::require(group.position.number >= -1 && group.sequence >= -1);
    fuzz::require(parse_rank_set(to_text(group.position.ranks)).has_value());
  }
  for (const AnsweredEntry& entry : answer->entries) {
    const Collective& call = entry.call;
    fuzz::require(call.number >= 0 && call.elements >= -1 && call.created_ns >= 0);
    fuzz::require(!call.group.empty() && call.sizes.size() <= look_sizes_bytes_max);
    fuzz::require(!call.peer || call.peer->value() >= 0);
    fuzz::require(!entry.duration_ms || *entry.duration_ms >= 0);
  }
  return 0;
}
