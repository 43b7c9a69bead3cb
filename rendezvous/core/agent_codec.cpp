#include "rendezvous/core/agent_codec.hpp"

#include <type_traits>
#include <utility>

#include "rendezvous/core/wire_fields.hpp"

namespace torchup {
namespace {

using wire::Reader;
using wire::Writer;

/// Type numbers, in the order of the variants' alternatives. Never change one; add at the end.
constexpr std::array<std::uint8_t, std::variant_size_v<AgentFrame>> agent_types{1, 2, 3, 16, 17, 18, 19, 20, 21};
constexpr std::array<std::uint8_t, std::variant_size_v<CoordinatorFrame>> coordinator_types{65, 66, 67, 68, 80,
                                                                                            81, 82, 83, 84};

template <class Frame>
std::string encode_frame(const Frame& frame, const auto& types) {
  Writer body;
  body(types[frame.index()]);
  std::visit([&](const auto& message) { body(message); }, frame);
  const std::string bytes = body.take();
  Writer length;
  length(static_cast<std::uint32_t>(bytes.size()));
  return length.take() + bytes;
}

template <class Frame, std::size_t... I>
Result<std::optional<Frame>> decode_body(std::uint8_t type, std::string_view body, const auto& types,
                                         std::index_sequence<I...>) {
  std::optional<Frame> frame;
  std::optional<Error> error;
  const auto try_one = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    if (type != types[i]) return false;
    std::variant_alternative_t<i, Frame> message{};
    Reader reader{body};
    reader(message);
    error = reader.error();
    frame.emplace(std::in_place_index<i>, std::move(message));
    return true;
  };
  if (!(try_one(std::integral_constant<std::size_t, I>{}) || ...)) {
    return fail(errc::bad_frame, "there is no frame of type " + std::to_string(type));
  }
  if (error) return *error;
  return frame;
}

template <class Frame>
Result<std::optional<Frame>> take_frame(std::string_view& input, std::size_t bytes_max, const auto& types) {
  constexpr std::size_t length_bytes = 4;
  if (input.size() < length_bytes) return std::optional<Frame>{};
  std::uint32_t length = 0;
  Reader{input.substr(0, length_bytes)}(length);
  if (length > bytes_max) {
    return fail(errc::limit_exceeded,
                "a frame of " + std::to_string(length) + " bytes, where " + std::to_string(bytes_max) + " are allowed");
  }
  if (length == 0) return fail(errc::bad_frame, "a frame without a type");
  if (input.size() - length_bytes < length) return std::optional<Frame>{};
  const std::string_view frame = input.substr(length_bytes, length);
  input.remove_prefix(length_bytes + length);
  return decode_body<Frame>(static_cast<std::uint8_t>(frame.front()), frame.substr(1), types,
                            std::make_index_sequence<std::variant_size_v<Frame>>{});
}

}  // namespace

std::string encode(const AgentFrame& frame) { return encode_frame(frame, agent_types); }
std::string encode(const CoordinatorFrame& frame) { return encode_frame(frame, coordinator_types); }

Result<std::optional<AgentFrame>> take_agent_frame(std::string_view& input, std::size_t bytes_max) {
  return take_frame<AgentFrame>(input, bytes_max, agent_types);
}
Result<std::optional<CoordinatorFrame>> take_coordinator_frame(std::string_view& input, std::size_t bytes_max) {
  return take_frame<CoordinatorFrame>(input, bytes_max, coordinator_types);
}

std::string proof_text(ProofOf who, std::uint16_t version, const Nonce& agents, const Nonce& coordinators,
                       const RunId& run_id) {
  Writer text;
  text(static_cast<std::uint8_t>(who), version, agents, coordinators, run_id);
  return "torchup job token\n" + text.take();
}

}  // namespace torchup
