#pragma once

#include <chrono>
#include <exception>
#include <string>

#include "worker_runtime/group/meeting.hpp"

namespace torchup {

inline constexpr auto first_notice =
    std::chrono::seconds{5};  // long enough for a healthy start, short enough that a person still looks

/// All ranks say who they are, over the store of `meeting`, and learn what they agree on: into `meeting`. Errors as
/// those of meet().
void hold_roll_call(const MeetingPlan& plan, Meeting& meeting);

/// Where they meet, for people.
std::string endpoint(const MeetingPlan& plan);
/// c10::Error's what() carries a backtrace of two pages; this is the sentence.
std::string reason(const std::exception& error);

}  // namespace torchup
