#include "rendezvous/core/ops/version_answer.hpp"

#include <fmt/format.h>

#include "rendezvous/core/link/agent_codec.hpp"

namespace torchup {
namespace {

#if defined(__x86_64__)
constexpr std::string_view target = "x86_64-linux-gnu";
#elif defined(__aarch64__)
constexpr std::string_view target = "aarch64-linux-gnu";
#else
constexpr std::string_view target = "linux-gnu";
#endif

}  // namespace

std::string version_answer(std::string_view program, bool as_json, std::initializer_list<SchemaNumber> schemas) {
  if (!as_json) return fmt::format("{} {}\n", program, TORCHUP_VERSION);
  std::string text =
      fmt::format(R"({{"name": "{}", "version": "{}", "commit": "{}", "target": "{}", "agent_protocol": [{}, {}])",
                  program, TORCHUP_VERSION, TORCHUP_COMMIT, target, agent_protocol_min, agent_protocol_max);
  for (const auto& [name, value] : schemas) text += fmt::format(R"(, "{}": {})", name, value);
  return text + "}\n";
}

}  // namespace torchup
