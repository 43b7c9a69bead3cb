// What an agent tells the starter of --rehearse-nodes, and what a starter tells an agent, from whomever.
#include "launcher/core/rehearsal/rehearsal_report.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text{reinterpret_cast<const char*>(data), size};
  if (const auto node = parse_rehearsed_node(text)) {
    fuzz::require(node->index >= 0 && node->index < node->nodes && node->nodes <= rehearsed_nodes_max);
    fuzz::require(*parse_rehearsed_node(to_text(*node)) == *node);
  }
  std::string input = text;
  GatheredFaults gathered;
  for (;;) {
    const std::size_t before = input.size();
    const auto report = take_rehearsal_report(input);
    if (!report || !*report) break;
    fuzz::require(input.size() < before);
    fuzz::require((*report)->faults.size() <= rehearsal_faults_max);
    std::string again = encode(**report);
    const auto same = take_rehearsal_report(again);
    fuzz::require(same && *same == *report && again.empty());
    gathered.add((*report)->faults, (*report)->what == RehearsalReport::What::ended);
  }
  fuzz::require(gathered.all().size() <= rehearsal_faults_max);
  return 0;
}
