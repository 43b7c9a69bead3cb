#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/result.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"

/// What a worker answers when it is asked to `look` (rendezvous/base/worker_channel.hpp, where its limits are): how far
/// it is in its groups, and the end of its recorder. All of it is a stranger's word.
namespace torchup {

struct AnsweredGroup {
  GroupPosition position;
  std::int64_t sequence = -1;  ///< PyTorch's own count, which has point-to-point calls in it; -1: not known
  friend bool operator==(const AnsweredGroup&, const AnsweredGroup&) = default;
};

struct AnsweredEntry {
  Collective call;
  std::optional<double> duration_ms;  ///< what the device took, where PyTorch measures it; never negative
  friend bool operator==(const AnsweredEntry&, const AnsweredEntry&) = default;
};

struct WorkerAnswer {
  std::vector<AnsweredGroup> groups;
  bool groups_cut = false;             ///< there were more
  std::vector<AnsweredEntry> entries;  ///< oldest first
  std::string problem;                 ///< why torch could not be asked, in the worker's words; empty: it was
  friend bool operator==(const WorkerAnswer&, const WorkerAnswer&) = default;
};

/// Reads `{"groups": [{name, desc, ranks, number, seq}], "entries": [{group, number, p2p, operation, sizes, dtypes,
/// created_ns, retired, duration_ms}]}`. An entry may as well be one of PyTorch's recorder, unchanged: `process_group`
/// (name and description), `collective_seq_id` and `p2p_seq_id`, `is_p2p`, `profiling_name`, `input_sizes`,
/// `input_dtypes`, `time_created_ns`.
///
/// A group without a name is no group: its description is the worker's problem. An entry without group or number is
/// left out, and so is one of a former group of the same name; any other member that is missing or makes no sense
/// leaves its value unknown. Texts are cut to look_*_bytes_max. Where the answer gives a group no number, it is that of
/// its newest entry. The operation stays as it is
/// (`gloo:all_reduce`), but a point-to-point call's `send 0->1` becomes `send` with the peer: a rank within the group,
/// told as a rank of the world when the group's members are known.
///
/// Errors: errc::bad_value when it is no JSON object; errc::limit_exceeded when longer than worker_answer_bytes or
/// nested deeper than json_depth_max.
/// Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
[[nodiscard]] Result<WorkerAnswer> parse_worker_answer(std::string_view bytes);

}  // namespace torchup
