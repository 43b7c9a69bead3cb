#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "launcher/core/rehearsal/rehearsal_script.hpp"

/// How each fault is written in a script.
namespace torchup {

/// What may stand behind an action's target.
enum class FaultOption : std::uint8_t { signal, by, lasts, back, times };
/// "signal=".
[[nodiscard]] std::string_view fault_option_name(FaultOption option);

struct ActionForm {
  FaultKind kind;
  std::string_view verb;
  std::string_view target;  ///< "rank=" or "node="
  std::vector<FaultOption> needed;
  std::vector<FaultOption> allowed;
};
[[nodiscard]] const std::vector<ActionForm>& action_forms();
[[nodiscard]] const ActionForm& form_of(FaultKind kind);

}  // namespace torchup
