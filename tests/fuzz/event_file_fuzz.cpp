// An event file read back: where time went, and the trace.
#include "launcher/core/record/time_fold.hpp"
#include "launcher/core/record/timeline.hpp"
#include "launcher/core/text/json.hpp"
#include "launcher/core/text/text.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  TimeFold fold;
  Timeline timeline;
  for (const std::string& line : lines_of({reinterpret_cast<const char*>(data), size})) {
    const auto event = read_time_event(line);
    if (!event) continue;
    if (*event) fold.add(**event);
    fuzz::require(timeline.add(line, *parse_json(line)).has_value());
  }
  const TimeLedger ledger = fold.ledger();
  for (std::size_t i = 0; i < spent_words.size(); ++i) fuzz::require(ledger.us(static_cast<Spent>(i)) >= 0);
  fuzz::require(json::parse(ledger_json(ledger)).is_object());
  fuzz::require(!ledger_lines(ledger, fold.counts()).empty());
  fuzz::require(json::parse(timeline.text()).at("traceEvents").is_array());
  return 0;
}
