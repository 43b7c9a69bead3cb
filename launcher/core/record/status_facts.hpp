#pragma once

#include "launcher/core/record/launch_event.hpp"
#include "launcher/core/text/status_line.hpp"
#include "rendezvous/core/link/node_report.hpp"

namespace torchup {

/// Brings up to date what the terminal's line says, by what has happened. Pure.
void apply(StatusFacts& facts, const EventBody& event, TimePoint now);
/// Likewise, by what this node's workers tell of their steps.
void see(StatusFacts& facts, const StepReport& steps);

}  // namespace torchup
