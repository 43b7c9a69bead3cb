#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/core/ops/job_page.hpp"
#include "rendezvous/core/round/notes.hpp"

namespace torchup {

/// What a coordinator records of its jobs by itself, as events have it: node_joined, node_left, node_refused,
/// node_unfit, round_formed, membership_changed, order_received. A JSON object in one line, without line end; empty for
/// a note that is no event of its own, for agents record it, or it is for the log alone.
///
/// `host`: the coordinator's; where a note is of a node, the event has that node's instead.
[[nodiscard]] std::string note_event(const Note& note, const std::string& host, const Moment& at);

}  // namespace torchup
