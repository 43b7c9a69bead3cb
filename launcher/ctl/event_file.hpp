#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "launcher/core/text/json.hpp"
#include "rendezvous/base/result.hpp"

namespace torchup {

/// An event of a file: its line as it is, without the line end, and what it says.
using SeeEvent = std::function<void(std::string_view line, const json& event)>;

/// Whether the user means a file by this word, and no job.
[[nodiscard]] bool is_event_file(const std::string& word);

/// Reads a file that --events has written, an event at a time. `follow`: waits for more at its end until the job has
/// ended.
///
/// Returns why the rest was not read, for a file that was cut off in the middle of a line or has something else in it;
/// empty where it was read whole. Errors: the system's; errc::wrong_version where it is of a later schema than ours,
/// with both numbers.
[[nodiscard]] Result<std::string> read_event_file(const std::string& path, bool follow, const SeeEvent& see);

}  // namespace torchup
