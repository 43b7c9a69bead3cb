#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "rendezvous/base/types.hpp"
#include "rendezvous/core/link/messages.hpp"

/// What no job can be: messages with such numbers are refused before the round machine counts with them, so that no sum
/// of theirs overflows and nothing is allocated by a number that somebody said.
namespace torchup {

/// A round that an agent tells of: it leaves room for those that follow, which have limits of their own in
/// messages.hpp.
inline constexpr std::int64_t round_told_max = round_max / 2;
inline constexpr Duration lease_min = std::chrono::milliseconds{100};

/// Why the message cannot be meant; nothing: it can. An agent of ours says no such thing.
[[nodiscard]] std::optional<std::string> implausible(const JobTerms& terms);
[[nodiscard]] std::optional<std::string> implausible(const Placement& place);
[[nodiscard]] std::optional<std::string> implausible(const Join& join);
[[nodiscard]] std::optional<std::string> implausible(const Resume& resume);
[[nodiscard]] std::optional<std::string> implausible(const AgentMessage& message);

}  // namespace torchup
