#include "rendezvous/core/link/agent_codec.hpp"

#include <type_traits>
#include <utility>

#include "rendezvous/core/link/wire_fields.hpp"

namespace torchup {
namespace {

using wire::Reader;
using wire::Writer;

/// Type numbers, in the order of the variants' alternatives. Never change one; add at the end.
constexpr std::array<std::uint8_t, std::variant_size_v<AgentFrame>> agent_types{1,  2,  3,  16, 17, 18,
                                                                                19, 20, 21, 22, 23, 24};
constexpr std::array<std::uint8_t, std::variant_size_v<CoordinatorFrame>> coordinator_types{65, 66, 67, 68, 80, 81,
                                                                                            82, 83, 84, 85, 86};

/// Where later types will stand. A frame of a type beyond is no agent's, one within is one that we do not know yet.
constexpr std::uint8_t agent_type_last = 63, coordinator_type_first = 64, coordinator_type_last = 127;

template <class Frame>
std::string encode_frame(const Frame& frame, const auto& types) {
  Writer body;
  body(types[frame.index()]);
  std::visit([&](const auto& message) { body.message(message); }, frame);
  const std::string bytes = body.take();
  Writer length;
  length(static_cast<std::uint32_t>(bytes.size()));
  return length.take() + bytes;
}

/// Empty for a type that is not known.
template <class Frame, std::size_t... I>
Result<std::optional<Frame>> decode_body(std::uint8_t type, std::string_view body, const auto& types,
                                         std::index_sequence<I...>) {
  std::optional<Frame> frame;
  std::optional<Error> error;
  const auto try_one = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
    if (type != types[i]) return false;
    std::variant_alternative_t<i, Frame> message{};
    Reader reader{body};
    reader.message(message);
    error = reader.error();
    frame.emplace(std::in_place_index<i>, std::move(message));
    return true;
  };
  (try_one(std::integral_constant<std::size_t, I>{}) || ...);
  if (error) return *error;
  return frame;
}

template <class Frame>
Result<std::optional<Frame>> take_frame(std::string_view& input, std::size_t bytes_max, const auto& types,
                                        std::uint8_t type_first, std::uint8_t type_last) {
  constexpr std::size_t length_bytes = 4;
  while (input.size() >= length_bytes) {
    std::uint32_t length = 0;
    Reader{input.substr(0, length_bytes)}(length);
    if (length > bytes_max) {
      return fail(errc::limit_exceeded, fmt::format("a frame of {} bytes, where {} are allowed", length, bytes_max));
    }
    if (length == 0) return fail(errc::bad_frame, "a frame without a type");
    if (input.size() - length_bytes < length) break;
    const std::string_view frame = input.substr(length_bytes, length);
    const auto type = static_cast<std::uint8_t>(frame.front());
    if (type < type_first || type > type_last) {
      return fail(errc::bad_frame, fmt::format("frames of type {} are not said in this direction", type));
    }
    input.remove_prefix(length_bytes + length);
    auto read =
        decode_body<Frame>(type, frame.substr(1), types, std::make_index_sequence<std::variant_size_v<Frame>>{});
    if (!read || read->has_value()) return read;
  }
  return std::optional<Frame>{};
}

}  // namespace

std::string encode(const AgentFrame& frame) { return encode_frame(frame, agent_types); }
std::string encode(const CoordinatorFrame& frame) { return encode_frame(frame, coordinator_types); }

Result<std::optional<AgentFrame>> take_agent_frame(std::string_view& input, std::size_t bytes_max) {
  return take_frame<AgentFrame>(input, bytes_max, agent_types, 1, agent_type_last);
}
Result<std::optional<CoordinatorFrame>> take_coordinator_frame(std::string_view& input, std::size_t bytes_max) {
  return take_frame<CoordinatorFrame>(input, bytes_max, coordinator_types, coordinator_type_first,
                                      coordinator_type_last);
}

std::string proof_text(ProofOf who, std::uint16_t version, const Nonce& agents, const Nonce& coordinators,
                       const RunId& run_id) {
  Writer text;
  text(static_cast<std::uint8_t>(who), version, agents, coordinators);
  text.name("a run id", run_id);
  return "torchup job token\n" + text.take();
}

}  // namespace torchup
