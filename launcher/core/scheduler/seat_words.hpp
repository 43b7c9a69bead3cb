#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/core/scheduler/seat.hpp"

/// What the tasks of a node say to each other, a packet each.
namespace torchup {

inline constexpr std::size_t seat_packet_bytes_max = 4096;

/// The name in Linux's abstract namespace under which the tasks of one user's step find each other on a node. `step`
/// names it and the node: the scheduler's run id, else something that they have alike. A long one is cut, with its hash
/// behind.
[[nodiscard]] std::string seat_name(std::string_view step, std::uint32_t user);

/// A task's first packet.
[[nodiscard]] std::string card_text(const SeatCard& card);
/// Errors: errc::bad_value for what is no card.
[[nodiscard]] Result<SeatCard> read_card(std::string_view text);

/// The agent's only one: the exit code.
[[nodiscard]] std::string code_text(int code);
/// Nothing for what is no exit code, from 0 to 255.
[[nodiscard]] std::optional<int> read_code(std::string_view text);

}  // namespace torchup
