#pragma once

#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/text/status_line.hpp"

namespace torchup {

/// Brings up to date what the terminal's line says, by what has happened. Pure.
void apply(StatusFacts& facts, const EventBody& event, TimePoint now);

}  // namespace torchup
