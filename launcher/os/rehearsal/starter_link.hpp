#pragma once

#include <optional>
#include <string>

#include "launcher/core/rehearsal/rehearsal_report.hpp"
#include "rendezvous/base/result.hpp"

/// The way from an agent of --rehearse-nodes to its starter: a variable says which node it is, a pipe takes reports.
namespace torchup {

inline constexpr const char* rehearsed_node_variable = "TORCHUP_REHEARSED_NODE";
/// Where an agent finds the pipe: ChildRequest::more.
inline constexpr int starter_descriptor = 3;

/// What the variable of this agent says, taken out of its environment; empty: it is none of a starter's. For both
/// processes of the agent: what they start does not inherit the pipe.
[[nodiscard]] std::string take_rehearsed_node();

/// Which node this agent is, by what take_rehearsed_node has found; nothing: none. Errors: errc::bad_value, with the
/// variable, where no starter has set it.
[[nodiscard]] Result<std::optional<RehearsedNode>> rehearsed_node(const std::string& found);

/// To the starter of this agent.
void tell_starter(const RehearsalReport& report);

}  // namespace torchup
