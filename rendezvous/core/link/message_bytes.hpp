#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rendezvous/core/link/messages.hpp"

/// What messages take up where they are kept, with what keeps them there.
namespace torchup {

/// Of a text, beyond the string itself.
[[nodiscard]] std::size_t text_bytes(const std::string& text);
[[nodiscard]] std::size_t held_bytes(const std::vector<std::string>& texts);
[[nodiscard]] std::size_t held_bytes(const Join& join);
[[nodiscard]] std::size_t held_bytes(const std::vector<WorkerFailure>& failures);
[[nodiscard]] std::size_t held_bytes(const Verdict& verdict);

/// Every member is told how the job ends: of a verdict so much to all of them together.
inline constexpr std::size_t verdict_told_bytes_max = std::size_t{64} << 20;

/// Failures of one attempt that a verdict tells of; the first ones matter.
inline constexpr std::size_t failures_kept_max = 64;

/// The one place where a verdict becomes what so many members are told: the root cause first, within those limits.
[[nodiscard]] Verdict told_verdict(Verdict verdict, std::size_t members);

/// The verdict with so few words that it takes up no more than `bytes`. Failures stay in their order, the first ones
/// for longest; half of the room is for that they happened, what is left for what is known of the causes.
[[nodiscard]] Verdict shortened(Verdict verdict, std::size_t bytes);

}  // namespace torchup
