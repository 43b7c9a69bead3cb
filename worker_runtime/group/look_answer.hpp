#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace torchup {

/// A group of this process, for who asks how far it is.
struct AnsweringGroup {
  std::string name;         ///< letters, digits and dots
  std::string description;  ///< the same; may be empty
  std::vector<int> global_ranks;
  /// When its ranks began to connect, by the clock of the day. What is recorded under its name before is of another
  /// group, as that of an earlier round.
  std::int64_t since_ns = 0;
  std::int64_t sequence = -1;  ///< LibTorch's count of its calls, not older than `recorders`; -1: it does not count
};

/// The answer to `look`, JSON of bytes_max at most, as the hook in Python workers gives it too (its reader:
/// launcher/core/diagnosis/worker_answer.hpp). `recorders`: texts of LibTorch's flight recorders. Groups go before
/// calls, of which the oldest are left out. Its other limits: rendezvous/base/worker_channel.hpp.
[[nodiscard]] std::string look_answer(std::span<const AnsweringGroup> groups, std::span<const std::string> recorders,
                                      std::size_t bytes_max);
/// The answer of who cannot tell, with the reason for people.
[[nodiscard]] std::string look_problem(std::string_view why);

}  // namespace torchup
