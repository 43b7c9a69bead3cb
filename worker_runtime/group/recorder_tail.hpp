#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace torchup {

/// A collective, or a point-to-point call, as LibTorch's flight recorder tells it. Texts are views of the recorder's,
/// as JSON writes them; empty: it does not say.
struct RecordedCall {
  std::string_view group;  ///< its name, without the quotes
  bool point_to_point = false;
  std::int64_t number = -1;  ///< of point-to-point calls, or of the others, in the group
  std::string_view operation;
  std::string_view sizes;  ///< of its inputs
  std::string_view dtypes;
  std::int64_t created_ns = 0;  ///< by the clock of the day
  bool retired = false;         ///< it is finished
  std::string_view duration_ms;
};

/// The last calls of the recorder's text, the newest first, calls_max at most. The text is megabytes where there are
/// many ranks, so it is not parsed but searched from its end. What is torn is left out.
///
/// Source: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, dump_json, which sorts members by their names.
[[nodiscard]] std::vector<RecordedCall> recorder_tail(std::string_view text, std::size_t calls_max);

}  // namespace torchup
