#pragma once

#include <string_view>

namespace torchup::simulation {

/// Of every agent that leaves, told back to it alone.
constexpr std::string_view leave_reason = "terminated";
/// Of every agent whose workers have saved; told back to it alone, where it has lost its place meanwhile.
constexpr std::string_view saved_reason = "saved";

/// A rule that is switched off, to see that the promises do not hold without it.
enum class Mutation {
  none,
  no_fence,           ///< an agent that was fenced lets its workers run
  reset_is_end,       ///< the coordinator takes a broken connection for the end of the agent's process
  reset_proves_end,   ///< the agent takes a broken connection for the end of the coordinator's process
  short_return,       ///< a coordinator that starts again gives agents less time than they take
  unread_first,       ///< an agent that wakes obeys what lies unread before it looks at its clock
  told_before_saved,  ///< orders leave the coordinator before its state is saved
};

constexpr std::string_view mutation_names[] = {"none",         "no-fence",     "reset-is-end",     "reset-proves-end",
                                               "short-return", "unread-first", "told-before-saved"};

}  // namespace torchup::simulation
