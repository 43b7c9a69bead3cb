#pragma once

#include <string>

#include "launcher/core/options/launch_config.hpp"
#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/record/run_record.hpp"
#include "rendezvous/core/round/job_view.hpp"

/// What an agent shows of its job when its coordinator does not: what it knows by itself. Pure.
namespace torchup {

/// The phase of a job whose coordinator is out of reach.
inline constexpr const char* cut_off_phase = "cut off";

/// How this node stands to its coordinator.
struct NodeStanding {
  std::string host = {};       ///< of this node, which is its id too
  bool torchruns = false;      ///< there is none: torchrun's agents decide
  std::string waits_for = {};  ///< what was said last of whom the job waits for, or of the way
  Duration out_of_reach{0};    ///< since when
};
/// The job, with this node alone.
[[nodiscard]] JobView node_view(const RunRecord& record, const LaunchConfig& config, const NodeStanding& standing);

/// Whether an event is one that all who look at the job are to hear of, and this node tells: it concerns failures,
/// hangs, incidents or warnings. What the whole job hears of is told by group rank 0's node (`is_first`).
[[nodiscard]] bool is_told_to_coordinator(const EventBody& event, bool is_first);
/// Whether a coordinator in this process records the same by itself.
[[nodiscard]] bool is_noted_by_coordinator(const EventBody& event);

}  // namespace torchup
