// A script of --rehearse, from whomever: faults and expectations within their limits, or one error that names the
// place.
#include "launcher/core/rehearsal/rehearsal.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto script = parse_rehearsal({reinterpret_cast<const char*>(data), size});
  if (!script) {
    const std::string message = script.error().message();
    fuzz::require(!message.empty() && message.front() >= '1' && message.front() <= '9');
    fuzz::require(message.size() < 512 && message.find('\x1b') == std::string::npos);
    return 0;
  }
  fuzz::require(script->statements.size() <= script_statements_max);
  const auto again = parse_rehearsal(to_text(*script));
  fuzz::require(again && *again == *script);

  // Played to a job of three nodes, it comes to its end.
  Rehearsal rehearsal{*script};
  using namespace std::chrono_literals;
  TimePoint now{100s};
  rehearsal.step(rehearsal::RoundBegins{.group_world_size = 3, .local_world_size = 2, .world_size = 6}, now);
  for (int i = 0; i < 20; ++i) {
    if (const auto due = rehearsal.deadline()) now = std::max(now, *due);
    rehearsal.step(rehearsal::Wake{}, now);
  }
  const auto result = rehearsal.ended({.exit_code = 0, .restarts = 1, .ranks = 6});
  fuzz::require(result.faults.size() <= rehearsal_faults_max);
  fuzz::require(result.passed == (result.exit_code == 0));
  return 0;
}
