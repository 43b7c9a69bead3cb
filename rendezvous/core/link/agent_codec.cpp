#include "rendezvous/core/link/agent_codec.hpp"

#include "rendezvous/core/link/typed_frames.hpp"
#include "rendezvous/core/link/wire_fields.hpp"

namespace torchup {
namespace {

/// Type numbers, in the order of the variants' alternatives. Never change one; add at the end. 2 and 65 were a
/// proof of the token, before TLS.
constexpr std::array<std::uint8_t, std::variant_size_v<AgentFrame>> agent_types{1,  3,  16, 17, 18, 19, 20, 21,
                                                                                22, 23, 24, 25, 26, 27, 4};
constexpr std::array<std::uint8_t, std::variant_size_v<CoordinatorFrame>> coordinator_types{66, 67, 68, 80, 81, 82, 83,
                                                                                            84, 85, 86, 87, 88, 70, 69};

/// Where later types will stand. A frame of a type beyond is no agent's, one within is one that we do not know yet.
constexpr std::uint8_t agent_type_last = 63, coordinator_type_first = 64, coordinator_type_last = 127;

}  // namespace

std::string encode(const AgentFrame& frame) { return wire::encode_frame(frame, agent_types); }
std::string encode(const CoordinatorFrame& frame) { return wire::encode_frame(frame, coordinator_types); }

Result<std::optional<AgentFrame>> take_agent_frame(std::string_view& input, std::size_t bytes_max) {
  return wire::take_frame<AgentFrame>(input, bytes_max, agent_types, 1, agent_type_last);
}
Result<std::optional<CoordinatorFrame>> take_coordinator_frame(std::string_view& input, std::size_t bytes_max) {
  return wire::take_frame<CoordinatorFrame>(input, bytes_max, coordinator_types, coordinator_type_first,
                                            coordinator_type_last);
}

}  // namespace torchup
