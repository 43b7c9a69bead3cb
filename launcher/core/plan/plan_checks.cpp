#include <fmt/format.h>

#include <iterator>

#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/text/wording.hpp"

namespace torchup {

Result<> plan_checks(const PlanSource& source, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  PreflightConfig& checks = plan.preflight;
  const std::string level = options.text("preflight", "quick");
  checks.only = options.flag("preflight-only");
  checks.as_json = checks.only && options.flag("json");
  checks.level = level == "full" || checks.only ? PreflightLevel::full
                 : level == "off"               ? PreflightLevel::off
                                                : PreflightLevel::quick;
  checks.health_check = options.text("health-check");
  if (options.has("health-check") && stripped(checks.health_check).empty()) {
    return bad("--health-check: no command is given; it is one for sh -c, for instance 'nvidia-smi -L'");
  }
  if (checks.health_check.size() > health_check_bytes_max) {
    return bad(
        fmt::format("--health-check: the command has {}, and {} at most may be given to sh -c; put it into a file",
                    bytes_text(std::ssize(checks.health_check)), bytes_text(health_check_bytes_max)));
  }
  return {};
}

}  // namespace torchup
