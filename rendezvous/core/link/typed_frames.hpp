#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/link/wire.hpp"

/// Variants of structures as frames: u32 length of what follows, u8 type, fields. `types` has the number of each of the
/// variant's alternatives, in their order.
namespace torchup::wire {

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

/// As take_agent_frame (agent_codec). A type beyond `type_first` to `type_last` is of the other direction.
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

}  // namespace torchup::wire
