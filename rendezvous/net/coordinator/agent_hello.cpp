#include "rendezvous/net/coordinator/agent_hello.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace torchup {

std::uint16_t common_version(const Hello& hello) { return std::min(hello.version_max, agent_protocol_max); }

std::string why_unwelcome(const Hello& hello, const std::string& address, bool proved,
                          const AgentSessionsOptions& options) {
  // First: whatever else is wrong with an agent of another job does not end that one's search for its coordinator.
  if (!options.only_job.empty() && hello.run_id.value() != options.only_job) {
    return std::string{port_of_another_job} + options.only_job;
  }
  if (common_version(hello) < std::max(hello.version_min, agent_protocol_min)) {
    return fmt::format("this coordinator speaks versions {} to {} of the agents' protocol, the agent {} to {}",
                       agent_protocol_min, agent_protocol_max, hello.version_min, hello.version_max);
  }
  const bool has_token = !options.token.empty();
  if (hello.has_token && !has_token)
    return "the agent has a token and this coordinator has none: start both with it, or none";
  if (!hello.has_token && has_token)
    return "this coordinator wants a token: start the agent with --token-file or TORCHUP_TOKEN";
  if (has_token && !proved) return "the agent proves its token as an older release did: start the same one on all nodes";
  if (!has_token && options.admits && !options.admits(address)) {
    return fmt::format("agents from {} are not let in: start this coordinator with --allow {} or with a token", address,
                       address);
  }
  return {};
}

}  // namespace torchup
