#include "rendezvous/core/link/plausible.hpp"

#include <fmt/format.h>

#include "rendezvous/core/text/wording.hpp"

namespace torchup {
namespace {

/// "the round is 7, which is not within 0 and 3"
template <class T>
std::optional<std::string> outside(const char* what, T value, T least, T most) {
  if (value >= least && value <= most) return {};
  return fmt::format("{} is {}, which is not within {} and {}", what, value, least, most);
}

std::optional<std::string> outside(const char* what, Duration value, Duration least) {
  if (value >= least && value <= duration_max) return {};
  return fmt::format("{} is {}, which is not within {} and {}", what, seconds(value), seconds(least),
                     seconds(duration_max));
}

}  // namespace

std::optional<std::string> implausible(const JobTerms& terms) {
  if (const auto why = outside("the smallest number of nodes", terms.min_nodes, 1, nodes_max)) return why;
  if (const auto why = outside("the largest number of nodes", terms.max_nodes, terms.min_nodes, nodes_max)) return why;
  if (const auto why = outside("--nnodes-multiple-of", terms.nodes_multiple_of, 1, terms.max_nodes)) return why;
  if (const auto why = outside("--max-restarts", terms.max_restarts, 0, restarts_max)) return why;
  if (const auto why = outside("--restart-window", terms.restart_window, Duration{0})) return why;
  if (const auto why = outside("the join timeout", terms.join_timeout, Duration{1})) return why;
  if (const auto why = outside("the last call", terms.last_call, Duration{0})) return why;
  if (const auto why = outside("the lease", terms.lease, lease_min)) return why;
  const HangTimeout& hang = terms.hang_timeout;
  if (hang.mode == HangTimeout::Mode::given) {
    if (const auto why = outside("--hang-timeout", hang.silence, hang_timeout_min)) return why;
    if (const auto why = outside("the start of --hang-timeout", hang.start.value_or(hang.silence), hang_timeout_min))
      return why;
  }
  if (terms.straggler_window == Duration{0}) return {};
  return outside("--straggler-window", terms.straggler_window, straggler_window_min);
}

std::optional<std::string> implausible(const Placement& place) {
  if (const auto why = outside("the round", place.round.value(), std::int64_t{0}, round_told_max)) return why;
  if (const auto why = outside("the group world size", place.group_world_size, 1, nodes_max)) return why;
  if (const auto why = outside("the group rank", place.group_rank.value(), 0, place.group_world_size - 1)) return why;
  if (const auto why = outside("the world size", place.world_size, 1, world_size_max)) return why;
  if (const auto why = outside("the first rank", place.first_rank.value(), 0, place.world_size - 1)) return why;
  if (const auto why = outside("the role's world size", place.role_world_size, 0, place.world_size)) return why;
  if (const auto why = outside("the first rank of the role", place.first_role_rank.value(), 0, place.world_size - 1))
    return why;
  if (const auto why = outside("the restart count", place.restart_count, 0, restarts_max)) return why;
  return outside("the number of membership changes", place.membership_changes, 0, membership_changes_max);
}

std::optional<std::string> implausible(const Join& join) {
  if (const auto why = implausible(join.terms)) return why;
  if (const auto why = outside("the local world size", join.local_world_size, 1, local_workers_max)) return why;
  if (const auto why = outside("the exit code without this node", join.needed_code, 1, exit_code_max)) return why;
  return join.former ? implausible(*join.former) : std::nullopt;
}

std::optional<std::string> implausible(const Resume& resume) {
  if (const auto why = implausible(resume.join)) return why;
  return resume.placement ? implausible(*resume.placement) : std::nullopt;
}

std::optional<std::string> implausible(const AgentMessage& message) {
  if (const auto* join = std::get_if<Join>(&message)) return implausible(*join);
  if (const auto* ready = std::get_if<StoreReady>(&message); ready && ready->port == Port{0}) {
    return "the port of the worker store is 0";
  }
  if (const auto* leave = std::get_if<Leave>(&message)) {
    if (const auto why = outside("the exit code", leave->exit_code, 0, exit_code_max)) return why;
    return outside("the signal", leave->stop_signal, 0, signal_max);
  }
  return {};
}

}  // namespace torchup
