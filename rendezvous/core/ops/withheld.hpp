#pragma once

#include <string>
#include <string_view>

/// What those do not see who may only read (Right::read): whatever workers or users wrote. It has members of its own
/// for that reason, and never stands within a text of ours. What a --health-check prints is shown: it is the operator's
/// word on a node, and why that has no place.
namespace torchup {

/// Whether a member of that name is left out, wherever it stands.
[[nodiscard]] bool is_withheld(std::string_view name);

/// Of an incident's or a hang's `summary` the part that is ours, "rank 3 (local rank 3, pid 7) on node1: exit code 1":
/// what follows it may be the worker's.
[[nodiscard]] std::string_view summary_without_message(std::string_view summary);

/// A JSON object without what is withheld, in one line. Where something was left out, or a `summary` was cut,
/// `"withheld": true` says so at its end; else it comes back unchanged. What is no JSON object, or nested deeper than
/// any of ours, is `{"withheld":true}`.
[[nodiscard]] std::string withheld(std::string_view json);

/// An event without what workers have printed, where nobody can tell who asks for it; `"withheld": true` says so.
[[nodiscard]] std::string without_output(std::string event);

}  // namespace torchup
