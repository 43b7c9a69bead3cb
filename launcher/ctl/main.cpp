// torchupctl: looks at running jobs, and steers them.

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "launcher/ctl/client.hpp"
#include "launcher/ctl/verbs.hpp"
#include "launcher/os/machine/gpus.hpp"
#include "rendezvous/base/exit_codes.hpp"
#include "rendezvous/net/io/standard_descriptors.hpp"

namespace torchup {
namespace {

struct Run {
  std::string_view verb;
  int (*run)(const Command&);
};
constexpr std::array runs{
    Run{"ps", run_ps},           Run{"status", run_status},     Run{"top", run_top},
    Run{"events", run_events},   Run{"logs", run_logs},         Run{"stacks", run_stacks},
    Run{"gpus", run_gpus},       Run{"page", run_page},         Run{"stop", run_stop},
    Run{"restart", run_restart}, Run{"resize", run_resize},     Run{"drain", run_drain},
    Run{"undrain", run_drain},   Run{"wait", run_wait},         Run{"ledger", run_ledger},
    Run{"report", run_report},   Run{"timeline", run_timeline}, Run{"explain", run_explain},
};

int run(const std::vector<std::string>& words) {
  const auto parsed = parse_command(words);
  if (const auto* end = std::get_if<EarlyEnd>(&parsed)) {
    std::fputs(end->err.c_str(), stderr);
    return end->out.empty() ? end->status : give(end->out, end->status);
  }
  const auto& command = std::get<Command>(parsed);
  for (const auto& [verb, function] : runs) {
    if (verb == command.verb->name) return function(command);
  }
  return exit_code::internal;
}

}  // namespace
}  // namespace torchup

int main(int argc, char** argv) {
  if (argc == 3 && argv[1] == torchup::nvml_word) return torchup::answer_about_gpus(argv[2]);
  torchup::fill_standard_descriptors();
  try {
    return torchup::run(std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
  } catch (const std::exception& error) {
    return torchup::complain(fmt::format("internal fault: {}", error.what()), torchup::exit_code::internal);
  }
}
