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

/// What a process was started with.
struct StarterLink {
  std::string node = {};  ///< what the variable said; empty: it is none of a starter's
  bool has_pipe = false;  ///< a pipe was there
};
/// Takes the variable out of the environment, and keeps what we start from inheriting the pipe. For both processes of
/// an agent, before they open anything.
[[nodiscard]] StarterLink take_starter_link();

/// Which node this agent is; nothing: none. Errors: errc::bad_value, with the variable, where no starter has set it.
[[nodiscard]] Result<std::optional<RehearsedNode>> rehearsed_node(const StarterLink& found);

/// To the starter of this agent.
void tell_starter(const RehearsalReport& report);

}  // namespace torchup
