#include "worker_runtime/place/agent_words.hpp"

#include <cstdio>
#include <utility>

namespace torchup {

std::optional<AgentWord> next_word(AgentChannel& channel) {
  while (const auto packet = channel.read()) {
    auto word = parse_agent_word(*packet);
    if (!word) {
      std::fprintf(stderr, "torchup: the channel to the agent has ended: %s\n", word.error().message().c_str());
      channel.end();
      break;
    }
    if (*word) return **std::move(word);
  }
  return std::nullopt;
}

}  // namespace torchup
